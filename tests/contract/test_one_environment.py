"""One environment serves every deployable: what any of them reads, all of them know."""

from __future__ import annotations

import pytest

from forebay_producer.settings import ProducerSettings
from forebay_schemas.errors import UsageError
from forebay_schemas.runtime.settings import ENV_PREFIX, KNOWN_VARIABLES, CommonSettings, load_settings


def variables_of(settings: type[CommonSettings]) -> set[str]:
    return {ENV_PREFIX + name.upper() for name in settings.model_fields}


def test_every_setting_of_the_producer_is_known_to_all() -> None:
    assert variables_of(ProducerSettings) <= KNOWN_VARIABLES


def test_every_setting_of_the_worker_is_known_to_all() -> None:
    worker = pytest.importorskip("forebay_worker.settings")
    assert variables_of(worker.WorkerSettings) <= KNOWN_VARIABLES


def test_the_producer_starts_in_the_worker_s_environment() -> None:
    environ = {"FOREBAY_BACKEND_URL": "http://127.0.0.1:1", "FOREBAY_LIMIT_MAX": "8"}
    assert load_settings(ProducerSettings, flags={}, config=None, environ=environ).pool == "default"


def test_a_misspelt_variable_is_refused_with_the_name_that_was_meant() -> None:
    with pytest.raises(UsageError, match="FOREBAY_LIMIT_MXA: is no setting; did you mean FOREBAY_LIMIT_MAX"):
        load_settings(ProducerSettings, flags={}, config=None, environ={"FOREBAY_LIMIT_MXA": "8"})
