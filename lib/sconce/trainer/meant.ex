defmodule Sconce.Trainer.Meant do
  @moduledoc false
  # Options of a training that mean nothing unless another one is of some value.

  # {option, the other, its values}: those of `check_meant` in native/train/src/options/check.rs, which sees to a
  # run that goes on; a test compares them.
  @beside [
    decay_steps: {:lr_schedule, [:linear, :cosine, :exponential]},
    decay_rate: {:lr_schedule, [:exponential]},
    restart_period: {:lr_schedule, [:cosine_restarts]},
    restart_mult: {:lr_schedule, [:cosine_restarts]},
    weights: {:sampling, [:weighted]},
    action_oversample: {:sampling, [:transitions]},
    teacher_weight: {:teacher, :given},
    teacher_direction: {:teacher, :given},
    noise_scale: {:noise, :above_zero},
    scheduled_sampling_steps: {:scheduled_sampling, :above_zero},
    scheduled_sampling_slots: {:scheduled_sampling, :above_zero},
    force_precision: {:precision, [:bf16, :f16]}
  ]

  @doc "Each such option, the one beside which it means something, and with which values."
  def beside, do: @beside

  @doc "Raises `ArgumentError` for an option with another value than its own that means nothing here."
  def check!(settings, schema) do
    for {name, {other, values}} <- @beside,
        settings[name] != schema[name][:default],
        not meant?(settings[other], values) do
      raise ArgumentError,
            "option #{inspect(name)} means nothing " <> why(other, values, settings)
    end
  end

  defp why(other, :given, _settings), do: "without option #{inspect(other)}"

  defp why(other, values, settings),
    do: "beside #{other}: #{inspect(settings[other])}; it goes with #{other}: #{listed(values)}"

  defp meant?(value, :above_zero), do: value > 0
  defp meant?(value, :given), do: value != nil
  defp meant?(value, values), do: value in values

  defp listed(:above_zero), do: "a number above 0"
  defp listed(values), do: Enum.map_join(values, " or ", &inspect/1)
end
