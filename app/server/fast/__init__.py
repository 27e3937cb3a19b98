"""The fast path: plain requests for generation, answered from the hub without Flask and WSGI environ.

What both ways do (validating, building, rendering, counting) is the routes' and the middleware's own code;
here a plain request is recognised, and whatever is in doubt is left to the general way before anything is
counted.
"""
