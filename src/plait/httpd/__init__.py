"""What every HTTP server of Plait has in common: who may come in, and how much they may ask for.

`Listen` says where a server listens (`listen.py`), `HttpServer` serves an ASGI app there
(`serve.py`), and `Guard` stands before the app (`guard.py`).  Starlette and uvicorn are the extra
`web`; only `serve.py` loads uvicorn.
"""
