"""Files as PEFT writes them."""

import json


def write(folder, name, **data):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(data))


def llama(folder, **adapter):
    write(folder, "config.json", model_type="llama", hidden_size=64, intermediate_size=96, num_hidden_layers=4)
    adapter = {"peft_type": "LORA", "r": 4, "target_modules": ["q_proj", "down_proj"], **adapter}
    write(folder, "adapter_config.json", **{key: value for key, value in adapter.items() if value != "absent"})
    return str(folder)
