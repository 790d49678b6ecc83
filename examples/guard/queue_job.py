"""A queue's job, Celery-style: late acknowledgement, so a message comes again after a crash. python queue_job.py FOLDER

With Celery the job below is the body of ``@app.task(bind=True, acks_late=True)``, and ``self.request.id`` the run id.
Here the queue is a folder of JSON files: one is taken, worked on, and only then removed.
"""

import json
import sys
from pathlib import Path

from refunds import refund, say

import counterfoil as cf


def job(message_id: str, order: str, cents: int) -> cf.Guarded:
    """Do one message's work; the message's id makes a redelivery the same run."""
    return cf.guard(f"message-{message_id}", refund, {"order": order, "cents": cents})


if __name__ == "__main__":
    for message in sorted(Path(sys.argv[1]).glob("*.json")):
        done = job(message.stem, **json.loads(message.read_text()))
        print(message.stem, say(done))
        if done.status.terminal:
            message.unlink()  # the acknowledgement
