"""Settings of SageMaker's sessions."""

from typing import Annotated

from msgspec import Meta

from config.declaration import About, Section

TEN_YEARS_S = 10 * 365 * 24 * 3600


class SageMakerSettings(Section, frozen=True, kw_only=True):
    """Sessions of SageMaker's hosting container."""

    sagemaker_enable_stateful_sessions: Annotated[
        bool, About(simulated=True, env=("SAGEMAKER_ENABLE_STATEFUL_SESSIONS",))
    ] = False
    """Open and close sessions on /invocations, as vLLM does with SageMaker's hosting standards."""
    sagemaker_sessions_expiration: Annotated[
        int,
        Meta(ge=1, le=TEN_YEARS_S),
        About(simulated=True, unit="s", env=("SAGEMAKER_SESSIONS_EXPIRATION",)),
    ] = 1200
    """Time from the start of a session until it expires."""
