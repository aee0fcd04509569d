"""queue_web - a web page for the queues of a database

    settings    what the command line says
    database    connections of roles; what PostgreSQL refuses, as sentences
    data        reads: what the pages show, as rows
    reader      one thread for each role, which does its reads in rounds
    history     numbers of the queues for a day, for the plots
    sessions    who has logged in; limits of logins; forms that nobody can forge
    actions     what a visitor may change, and in which state of a message
    sweep       an action on all messages that match, page by page
    show        values as HTML
    plots       numbers as SVG
    pages       what is behind each address
    server      HTTP: which requests are refused before all else
    demo        a private server with a little load
"""
__version__ = "2.0"
