"""vLLM's answer to a schema, which depends on the backend that vLLM chooses.

vLLM validates a schema for xgrammar. If that fails, it validates the schema for llguidance, or for
Outlines if the schema has ``patternProperties``, and refuses it if this fails, too. The engine then
compiles the accepted schema with the backend of its first request, which is xgrammar in practice:
if xgrammar itself fails, the answer is an internal error. Start reading at `verdict_on`.
"""

from app.core.engine.constraints import SchemaVerdict
from app.extensions.forms.schema.backends.features import needs_other_backend, needs_outlines
from app.extensions.forms.schema.backends.llguidance import LlguidanceCheck
from app.extensions.forms.schema.backends.outlines import OutlinesCheck
from app.extensions.forms.schema.backends.work import RefusalError, Work, WorkLimitError
from app.extensions.forms.schema.backends.xgrammar import XgrammarCheck
from app.extensions.forms.schema.keywords import JSON

MAX_MESSAGE_LENGTH = 900
"""Maximum characters of a message, which may name parts of the schema."""
ACCEPTED = SchemaVerdict()


def verdict_on(schema: JSON) -> SchemaVerdict:
    """Returns vLLM's answer to `schema`; one that cannot be checked is accepted.

    A check fails for too many or too deeply nested schemas, and for numbers beyond floats.
    """
    try:
        return _verdict_on(schema)
    except (WorkLimitError, RecursionError, ArithmeticError):
        return ACCEPTED


def _verdict_on(schema: JSON) -> SchemaVerdict:
    xgrammar = XgrammarCheck(schema, Work())
    is_converted = True
    try:
        xgrammar.check()
    except RefusalError:
        is_converted = False
    fails = not is_converted or not xgrammar.compiles
    if is_converted and not needs_other_backend(schema):
        return SchemaVerdict(fails=fails, suits_tags=is_converted)
    try:
        if needs_outlines(schema):
            OutlinesCheck(schema, Work()).check()
        else:
            LlguidanceCheck(schema, Work()).check()
    except RefusalError as refusal:
        return SchemaVerdict(str(refusal)[:MAX_MESSAGE_LENGTH], suits_tags=is_converted)
    return SchemaVerdict(fails=fails, suits_tags=is_converted)
