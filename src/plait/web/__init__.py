"""`plait web`: runs in a browser.

Pages are made on the server from `views`; what a page does is done by a `plait` command.

    html        text that is safe in a page: nothing can be written unescaped
    ansi        output with colours
    layout      the frame of every page
    runs_page, run_page, step_page, start_page    the pages
    charts      timeline, overview of items, diagram
    watchers    runs that are shown now, kept up to date
    commands    the buttons
    server      addresses, and live updates
    export      a run as one file
"""
