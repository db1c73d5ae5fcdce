"""`plait web`: the pages that show runs in a browser.

Pages are made on the server from `views`. A button of a page starts a `plait` command. In reading
order:

    html          elements that cannot hold a value unescaped
    ansi          output with the colours of a terminal as HTML
    addresses     the addresses of the pages
    layout        the frame of every page, and the small parts that all pages use
    fields        the fields of forms
    charts        timeline, overview of items and diagram as SVG
    runs_page, run_page, step_page, start_page    the pages
    projects      the projects and runs that are shown, kept up to date
    live          live updates: the parts of a page that have changed
    run_actions   the buttons of a run, each of which is a command
    server        the addresses that are served, behind the guard of `httpd`
    export        a run as one file
"""
