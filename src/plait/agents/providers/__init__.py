"""Whoever answers questions to language models: servers, recordings, functions of a program.

    spec       a provider file, read: where a model is asked, with what, and what that costs
    find       which file a name means, and whether it may be used
    families/  questions and answers in the words of a wire format, without a wire
    sse        events out of the bytes of a stream
    client     one exchange with a server: key, attempts, deadline, a wish to stop
    replay     answers that were given before; questions written down
    scripted   answers that a program gives
    asking     a question until its answer is as it has to be

`asking.Asking` is the `Provider` that steps know; what it asks is a `Model`: a server, a
recording or a function, each of which answers one question once.
"""
