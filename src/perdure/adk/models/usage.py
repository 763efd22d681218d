"""What requests to a model cost, as perdure counts it."""

from __future__ import annotations

from google.genai import types

from perdure.session.model import Usage


def usage_of(reported: types.GenerateContentResponseUsageMetadata | None, requests: int) -> Usage:
    """The usage of ``requests`` tries of one model call, of which the last one reported its tokens."""
    if reported is None:
        return Usage(model_calls=requests)
    return Usage(
        input_tokens=(reported.prompt_token_count or 0) + (reported.tool_use_prompt_token_count or 0),
        output_tokens=(reported.candidates_token_count or 0) + (reported.thoughts_token_count or 0),
        model_calls=requests,
    )
