"""What a server would hit, told: the recommendation, what changed between releases, a table, a page."""

from prefixscope.prediction.advice import Advice, advise, upgrade
from prefixscope.prediction.answer import Now, Prediction
from prefixscope.prediction.changes import changes
from prefixscope.prediction.pressed import render_pressed
from prefixscope.prediction.sheet import render_prediction

__all__ = ["Advice", "Now", "Prediction", "advise", "changes", "render_prediction", "render_pressed", "upgrade"]
