"""Makes steps of the events that a hook noted: pure, fed by whatever reads them."""

from aitop.sources.step_maker.maker import StepMaker as StepMaker
