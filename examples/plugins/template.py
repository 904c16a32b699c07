"""A template: an interview, in which every message is a paragraph that begins with Q or A."""

from typing import Literal

from zoo import TEMPLATES, MarkerTemplate
from zoo.data.instructions.files import Speaker


@TEMPLATES.register
class Interview(MarkerTemplate):
    """Questions after `Q:`, answers after `A:`; a message of the system stands above them."""

    type: Literal["interview"] = "interview"

    def before(self, role: Speaker) -> str:
        """Return the letter of the role."""
        return {"system": "", "user": "Q: ", "assistant": "A: "}[role]

    def after(self, role: Speaker) -> str:
        """Return the end of the paragraph."""
        return "\n\n"
