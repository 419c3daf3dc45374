"""How a parameter of the library is called on the command line."""


def option_name(parameter: str) -> str:
    """A parameter as the option that sets it."""
    return (
        parameter
        if parameter.startswith("-") or ":" in parameter or parameter == "FILE"
        else "--" + parameter.replace("_", "-")
    )
