"""Files as PEFT writes them."""

import json
import math


def write(folder, name, **data):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(data))


def save_tensors(path, shapes, cut=0):
    """A safetensors file with float32 tensors of these shapes."""
    header, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end - cut)


def factors(shapes):
    """The A and B of layers ``{name: (outputs, inputs, rank)}`` as PEFT names them."""
    found = {}
    for name, (outputs, inputs, rank) in shapes.items():
        found[f"base_model.model.{name}.lora_A.weight"] = [rank, inputs]
        found[f"base_model.model.{name}.lora_B.weight"] = [outputs, rank]
    return found


NAMED = {f"model.layers.{i}.{end}": shape for i in range(4)
         for end, shape in (("self_attn.q_proj", (64, 64, 4)), ("mlp.down_proj", (64, 96, 4)))}  # fmt: skip


def llama(folder, **adapter):
    adapter = {"peft_type": "LORA", "r": 4, "target_modules": ["q_proj", "down_proj"], **adapter}
    write(folder, "adapter_config.json", **{key: value for key, value in adapter.items() if value != "absent"})
    save_tensors(folder / "adapter_model.safetensors", factors(NAMED))
    return str(folder)
