"""All laws, by name."""

from .model_laws import (
    calibration_keeps_classes, evaluates_alike, exported_models_predict_alike, folder_is_sound, formats_hold_the_same_predictions,
    loads_in_pytorch, memory_is_as_described, models_predict_together, predicts_alike, ranks_agree_on_models,
)
from .training_laws import (
    a_life_of_interruptions, another_format_trains_alike, cached_trains_alike, extended, killed_and_resumed, learns_what_is_easy, ranks_train_as_one,
    restarts_after_a_loss, resumed_on_other_ranks, saved_config_trains_alike, starts_alike, starts_from_its_model, stopped_and_resumed,
    traced_trains_alike, weights_are_relative,
)

LAWS = {law.__name__: law for law in [
    ranks_train_as_one, stopped_and_resumed, resumed_on_other_ranks, killed_and_resumed, extended, saved_config_trains_alike,
    evaluates_alike, predicts_alike, another_format_trains_alike, learns_what_is_easy,
    exported_models_predict_alike, loads_in_pytorch, memory_is_as_described, weights_are_relative,
    starts_alike, restarts_after_a_loss, a_life_of_interruptions, starts_from_its_model, ranks_agree_on_models, calibration_keeps_classes,
    formats_hold_the_same_predictions, models_predict_together, folder_is_sound, traced_trains_alike,
    cached_trains_alike,
]}
