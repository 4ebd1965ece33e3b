"""The program of the process that answers its user's queries; what is below knows no stores."""

from __future__ import annotations

from odfchain.api.workspace import connect
from odfchain.query.process import serve

if __name__ == "__main__":
    serve(connect)
