"""Release notes: read the changes, publish the release, announce it in three places at once, send the newsletter.

    counterfoil provider --port 8321 --ledger ledger.db &
    counterfoil run examples/release_notes.py:flow --run-id notes-1.4 --input "1.4"
    counterfoil crashtest examples/release_notes.py:flow --input "1.4"

The three announcements run beside each other: each has a key, a dispatch record and a receipt of its own.
The model is a script.
"""

import os
from datetime import timedelta
from http import HTTPStatus
from typing import Any

import counterfoil as cf

PROVIDER = os.environ.get("COUNTERFOIL_PROVIDER_URL", "http://127.0.0.1:8321")
CHANGES = {"1.4": ["Journals can be pruned.", "A lookup may lag."]}


@cf.tool(contract=cf.Read())
def read_changes(version: str) -> list[str]:
    """Read what changed in a version."""
    return CHANGES.get(version, [])


# We choose the release's id: creating it twice conflicts, and then we look whether the one that is there is ours.
@cf.tool(contract=cf.ClientId())
async def publish_release(version: str, notes: str, *, call: cf.Call) -> str:
    """Publish a release."""
    answer = await call.http.put(
        f"{PROVIDER}/releases/{call.key}",
        json={"version": version, "notes": notes},
        headers={"If-None-Match": "*", "X-Reference": call.key},
    )
    if answer.status_code == HTTPStatus.PRECONDITION_FAILED:
        raise cf.AlreadyExists(f"there is a release {call.key}")
    answer.raise_for_status()
    return str(answer.json()["id"])


@publish_release.lookup
async def find_release(call: cf.Call) -> cf.Found[str] | cf.Absent | cf.CannotTell:
    """Fetch the release with our id, and see that it carries our mark."""
    answer = await call.http.get(f"{PROVIDER}/releases/{call.key}")
    if answer.status_code == HTTPStatus.NOT_FOUND:
        return cf.Absent()
    answer.raise_for_status()
    release = answer.json()
    if release["reference"] != call.key:
        return cf.CannotTell("something else holds our id")
    return cf.Found(str(release["id"]))


@cf.tool(contract=cf.Keyed(remembered_for=timedelta(hours=24)), parallel=True, dispatch="late")
async def announce(place: str, text: str, *, call: cf.Call) -> str:
    """Announce something in a place."""
    answer = await call.http.post(f"{PROVIDER}/posts", json={"place": place, "text": text})
    answer.raise_for_status()
    return str(answer.json()["id"])


# The newsletter goes to everyone, and the service finds it by our reference a while later: an absence counts late.
@cf.tool(contract=cf.Lookup(settles_in=timedelta(minutes=1)), dispatch="late")
async def send_newsletter(text: str, *, call: cf.Call) -> str:
    """Send the newsletter."""
    answer = await call.http.post(f"{PROVIDER}/newsletters", json={"text": text}, headers={"X-Reference": call.key})
    answer.raise_for_status()
    return str(answer.json()["id"])


@send_newsletter.lookup
async def find_newsletter(call: cf.Call) -> cf.Found[str] | cf.Several[str] | cf.Absent:
    """Find the newsletters that carry our reference."""
    answer = await call.http.get(f"{PROVIDER}/newsletters", params={"reference": call.key})
    answer.raise_for_status()
    found = tuple(str(one["id"]) for one in answer.json())
    return cf.Absent() if not found else cf.Found(found[0]) if len(found) == 1 else cf.Several(found)


def script(request: cf.ModelRequest) -> dict[str, Any]:
    """Say what a model would say in each turn."""
    version = str(request.input or "1.4")
    text = f"Version {version} is out."
    match request.turn:
        case 1:
            return {"calls": [{"name": "read_changes", "arguments": {"version": version}}]}
        case 2:
            notes = request.history[0].results[0].content
            return {"calls": [{"name": "publish_release", "arguments": {"version": version, "notes": notes}}]}
        case 3:
            places = ("forum", "chat", "blog")
            return {"calls": [{"name": "announce", "arguments": {"place": place, "text": text}} for place in places]}
        case 4:
            return {"calls": [{"name": "send_newsletter", "arguments": {"text": text}}]}
        case _:
            return {"text": f"{text} Everybody knows."}


flow = cf.Agent(
    "release notes",
    version="1",
    model=cf.ScriptedModel(script),
    tools=[read_changes, publish_release, announce, send_newsletter],
)
