"""The simulated engine as an OpenAI-compatible HTTP server, with faults to order. Runs on one asyncio event loop."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import TYPE_CHECKING, Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from forebay_sandbox.engine.faults import CutWhere, Fault, FaultKind, FaultPlan, parse_faults
from forebay_sandbox.engine.ledger import Execution, ExecutionLedger, ExecutionOutcome
from forebay_sandbox.engine.loop import EngineLoop, Generation
from forebay_sandbox.engine.physics import Admission
from forebay_sandbox.engine.port import SwitchablePort
from forebay_sandbox.engine.protocol import Answer, Endpoint, error_body, parse_request
from forebay_schemas.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from forebay_sandbox.engine.physics import EnginePhysics
    from forebay_schemas.clock import Clock

_BODY_BYTES_MAX = 64 * 1024 * 1024
_PATHS = {"/v1/chat/completions": Endpoint.CHAT, "/v1/completions": Endpoint.COMPLETION}


class EngineServer:
    """One engine. `async with EngineServer(...) as engine:` listens until the block ends; requests in flight are cut.

    `control_port` serves only /sandbox/*, also while the main port refuses; port 0 picks a free one.
    """

    def __init__(
        self,
        *,
        physics: EnginePhysics,
        models: Sequence[str],
        clock: Clock,
        host: str = "127.0.0.1",
        port: int = 0,
        control_port: int | None = None,
        seed: int = 0,
        log_path: Path | None = None,
    ) -> None:
        self._models = tuple(models)
        self._clock = clock
        self._loop = EngineLoop(physics=physics, model=self._models[0], clock=clock)
        self._ledger = ExecutionLedger(clock=clock, log_path=log_path)
        self._faults = FaultPlan(seed=seed)
        self._request_numbers = itertools.count(1)
        self._cutting = False  # connections that end now end by the engine's doing
        self._tasks: list[asyncio.Task[None]] = []
        self._resume_timer: asyncio.TimerHandle | None = None
        self._port = SwitchablePort(host=host, port=port, app=self._application())
        self._control: SwitchablePort | None = None
        if control_port is not None:
            control = web.Application()
            control.add_routes(self._control_routes())
            self._control = SwitchablePort(host=host, port=control_port, app=control)

    async def __aenter__(self) -> EngineServer:
        """OSError: a port is taken."""
        try:
            await self._port.open()
            if self._control is not None:
                await self._control.open()
        except OSError:
            await self.__aexit__()
            raise
        self._tasks.append(asyncio.create_task(self._loop.run()))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._cutting = True
        await self._port.close()
        if self._control is not None:
            await self._control.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._ledger.close()

    @property
    def url(self) -> str:
        """Without /v1."""
        return self._port.url

    @property
    def control_url(self) -> str:
        """Where /sandbox/* always answers; the main URL when there is no second port."""
        return self.url if self._control is None else self._control.url

    def _application(self) -> web.Application:
        app = web.Application(client_max_size=_BODY_BYTES_MAX)
        app.add_routes([web.post(path, self._infer) for path in _PATHS])
        app.add_routes(
            [
                web.get("/v1/models", self._list_models),
                web.get("/health", self._health),
                web.get("/metrics", self._show_metrics),
                *self._control_routes(),
            ]
        )
        return app

    def _control_routes(self) -> list[web.RouteDef]:
        return [
            web.get("/sandbox/requests", self._show_requests),
            web.post("/sandbox/reset", self._reset),
            web.get("/sandbox/faults", self._show_faults),
            web.put("/sandbox/faults", self._put_faults),
            web.delete("/sandbox/faults", self._delete_faults),
        ]

    # --- inference

    async def _infer(self, http: web.Request) -> web.StreamResponse:
        # A worker's x-request-id is the execution's own.
        given = http.headers.get("x-forebay-request-id") or http.headers.get("x-request-id")
        request_id = given or f"sandbox-{next(self._request_numbers)}"
        execution = self._ledger.begin(request_id=request_id, path=http.path)
        execution.worker = http.headers.get("x-forebay-worker")
        execution.attempt = http.headers.get("x-forebay-attempt")
        execution.replay_count = http.headers.get("x-forebay-replay-count")
        execution.traceparent = http.headers.get("traceparent")
        try:
            return await self._answer(http, execution)
        except UsageError as error:
            return _refuse(execution, 400, message=str(error), kind="invalid_request_error", param=error.field)
        except web.HTTPRequestEntityTooLarge:
            message = f"the body is larger than {_BODY_BYTES_MAX} bytes"
            return _refuse(execution, 413, message=message, kind="invalid_request_error")
        except (asyncio.CancelledError, ConnectionError):
            execution.end(ExecutionOutcome.FAILED if self._cutting else ExecutionOutcome.DISCONNECTED)
            raise

    async def _answer(self, http: web.Request, execution: Execution) -> web.StreamResponse:
        raw = await http.read()
        fault = self._faults.choose(request_id=execution.request_id, body=raw)
        if fault is not None:
            execution.fault = fault.kind.value
            if fault.kind is FaultKind.STATUS:
                return _refuse_by_fault(execution, fault)
            if fault.kind is FaultKind.HANG:
                await asyncio.Future()
            if fault.kind is FaultKind.CUT and fault.where is CutWhere.BEFORE:
                execution.end(ExecutionOutcome.FAILED)
                _cut(http)
                return web.Response()
        request = parse_request(_PATHS[http.path], raw)
        execution.prompt_tokens = request.prompt_tokens
        if request.model is not None and request.model not in self._models:
            message = f"The model `{request.model}` does not exist; this engine serves {', '.join(self._models)}."
            return _refuse(
                execution, 404, message=message, kind="invalid_request_error", param="model", code="model_not_found"
            )
        generation = self._loop.submit(request)
        if isinstance(generation, Admission):
            return _refuse_by_admission(execution, generation)
        answer = Answer(
            request=request,
            request_id=execution.request_id,
            model=request.model or self._models[0],
            created_seconds=self._clock.wall_ms() // 1000,
        )
        try:
            if request.stream:
                return await self._stream(http, execution, generation, answer, fault)
            return await self._whole(http, execution, generation, answer, fault)
        finally:
            self._loop.abort(generation)
            execution.output_tokens = generation.tokens

    async def _whole(
        self, http: web.Request, execution: Execution, generation: Generation, answer: Answer, fault: Fault | None
    ) -> web.StreamResponse:
        await generation.done
        await self._hold(generation, fault)
        body = answer.whole()
        headers = {"x-request-id": execution.request_id}
        execution.status = 200
        if fault is not None and fault.kind is FaultKind.CUT:
            response = web.StreamResponse(headers=headers | {"Content-Length": str(len(body))})
            response.content_type = "application/json"
            await response.prepare(http)
            await response.write(body[: len(body) // 2])
            _end_cut(http, execution, generation)
            return response
        _complete(execution, generation)
        return web.Response(body=body, content_type="application/json", headers=headers)

    async def _stream(
        self, http: web.Request, execution: Execution, generation: Generation, answer: Answer, fault: Fault | None
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"x-request-id": execution.request_id, "Cache-Control": "no-cache"})
        response.content_type = "text/event-stream"
        execution.status = 200
        await response.prepare(http)
        chunk = answer.token_chunk()
        pending = answer.first_chunk()
        cut_after = generation.request.output_tokens // 2 if fault is not None and fault.kind is FaultKind.CUT else None
        sent = 0
        while sent < generation.request.output_tokens:
            tokens = await generation.more_tokens(than=sent)
            await response.write(pending + chunk * (tokens - sent))
            pending, sent = b"", tokens
            if cut_after is not None and sent >= cut_after:
                _end_cut(http, execution, generation)
                return response
        await self._hold(generation, fault)
        await response.write(answer.last_chunks())
        _complete(execution, generation)
        await response.write_eof()
        return response

    async def _hold(self, generation: Generation, fault: Fault | None) -> None:
        """A chosen request is slow by itself: its answer is held back, while the batch goes on at full speed."""
        if fault is not None and fault.kind is FaultKind.SLOW:
            await asyncio.sleep((self._clock.monotonic() - generation.arrived_at) * (fault.factor - 1))

    # --- what an engine shows

    async def _list_models(self, _: web.Request) -> web.Response:
        models = [{"id": model, "object": "model", "owned_by": "forebay-sandbox"} for model in self._models]
        return web.json_response({"object": "list", "data": models})

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _show_metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._loop.metrics.render(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    # --- control

    async def _show_requests(self, _: web.Request) -> web.Response:
        batch = self._loop.batch
        now = {"running": batch.running, "waiting": batch.waiting, "kv_used_tokens": batch.kv_used_tokens}
        return web.json_response(self._ledger.counts() | now)

    async def _reset(self, _: web.Request) -> web.Response:
        self._ledger.reset()
        return web.Response(status=204)

    async def _show_faults(self, _: web.Request) -> web.Response:
        return web.json_response({"faults": self._faults.describe()})

    async def _put_faults(self, http: web.Request) -> web.Response:
        try:
            faults = parse_faults(json.loads(await http.read()))
            if self._control is None and any(f.kind is FaultKind.REFUSE and f.seconds is None for f in faults):
                raise UsageError("seconds", "is missing", fix="give them, or start the engine with --control-port")
        except UsageError as error:
            body = error_body(message=str(error), kind="invalid_request_error", param=error.field)
            return web.json_response(body, status=400)
        except ValueError as error:
            body = error_body(message=f"body: is not JSON ({error})", kind="invalid_request_error", param="body")
            return web.json_response(body, status=400)
        return await self._enforce(http, faults)

    async def _delete_faults(self, http: web.Request) -> web.Response:
        return await self._enforce(http, ())

    async def _enforce(self, http: web.Request, faults: Sequence[Fault]) -> web.Response:
        self._faults.replace(faults)
        self._loop.step_factor = self._faults.step_factor
        if self._resume_timer is not None:
            self._resume_timer.cancel()
            self._resume_timer = None
        response = web.json_response({"faults": self._faults.describe()})
        refusal = self._faults.refusal
        if refusal is None:
            await self._accept_again()
            return response
        response.force_close()
        self._cutting = True
        await self._port.refuse(spare=http.transport)
        if refusal.seconds is not None:
            self._resume_timer = asyncio.get_running_loop().call_later(refusal.seconds, self._end_refusal)
        return response

    def _end_refusal(self) -> None:
        self._faults.end_refusal()
        self._tasks.append(asyncio.create_task(self._accept_again()))

    async def _accept_again(self) -> None:
        self._cutting = False
        await self._port.accept()


def _complete(execution: Execution, generation: Generation) -> None:
    execution.output_tokens = generation.tokens
    execution.end(ExecutionOutcome.COMPLETED)


def _end_cut(http: web.Request, execution: Execution, generation: Generation) -> None:
    execution.output_tokens = generation.tokens
    execution.end(ExecutionOutcome.FAILED)
    if http.transport is not None:
        http.transport.close()  # what was written goes out first


def _cut(http: web.Request) -> None:
    if http.transport is not None:
        http.transport.abort()


def _refuse(execution: Execution, status: int, *, headers: dict[str, str] | None = None, **error: Any) -> web.Response:
    execution.status = status
    refused = status < 500 or status == 503
    execution.end(ExecutionOutcome.REFUSED if refused else ExecutionOutcome.FAILED)
    return web.json_response(error_body(**error), status=status, headers=headers)


def _refuse_by_fault(execution: Execution, fault: Fault) -> web.Response:
    headers = {} if fault.retry_after_seconds is None else {"Retry-After": str(fault.retry_after_seconds)}
    kind = (
        "rate_limit_error" if fault.status == 429 else "invalid_request_error" if fault.status < 500 else "server_error"
    )
    return _refuse(execution, fault.status, headers=headers, message=f"injected fault: {fault.status}", kind=kind)


def _refuse_by_admission(execution: Execution, admission: Admission) -> web.Response:
    if admission is Admission.QUEUE_FULL:
        return _refuse(execution, 503, message="the engine's queue is full", kind="server_error", code="overloaded")
    message = "prompt and output together are longer than the engine's KV cache"
    return _refuse(
        execution, 400, message=message, kind="invalid_request_error", param="messages", code="context_length_exceeded"
    )
