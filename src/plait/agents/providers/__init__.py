"""Model providers: servers, recordings, and functions of a program.

A provider is a YAML file: those of Plait are in `system/providers/`. The modules here read such
files and send requests; only a new wire format needs code.

    spec        parse a provider file: server, request body, models, prices
    file_check  the problems of one provider file
    provider_files
                find the file of a provider and check that it is trusted
    wire_formats/
                convert requests and responses to and from the format of a family
    sse         parse the events of a stream
    client      one request to a server: key, attempts, deadline, stop signal
    recordings  record responses, and replay them
    scripted    responses from a program
    structured  repeat a request until its response matches the schema

Steps use `structured.StructuredProvider`. It sends its requests to a `Model`: a server, a
recording or a function.
"""
