"""A plugin that shortens the minute for which guided requests are refused after three
deaths of the worker.

Put this folder on the PYTHONPATH of a server under test.
"""

from guided_plugin.worker.engine import supervisor

supervisor.WINDOW_SECONDS = 20.0
