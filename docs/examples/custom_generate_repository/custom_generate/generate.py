"""A repository with this file makes `model.generate(..., custom_generate="OWNER/NAME")` draw by Underpaint."""

import underpaint


def generate(model, **arguments):
    options = {name: value for name, value in arguments.items() if value is not None}
    return model.generate(custom_generate=underpaint.generate, **options)
