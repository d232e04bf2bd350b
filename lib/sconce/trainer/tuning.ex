defmodule Sconce.Trainer.Tuning do
  @moduledoc """
  The batch size with the most frames a second, and the measurements behind it, from `Sconce.Trainer.tune/2`. `IO.puts/1`
  prints the table.
  """

  alias Sconce.Policy.Spec
  alias Sconce.Run.Estimate

  @enforce_keys [:spec, :rows, :batch_size, :stopped, :window_size, :threads, :precision] ++
                  [:memory_limit]
  defstruct @enforce_keys ++ [from: :measured]

  @typedoc "A measured batch size: seconds of a step, and bytes of a run, from the measured memory of the step."
  @type row :: %{
          batch_size: pos_integer,
          step_seconds: float,
          frames_per_second: float,
          bytes: pos_integer
        }

  @typedoc """
  `batch_size` is the best one. `stopped` is the reason why no larger batch was measured: it would not have fit into the
  `memory_limit`, the last one did not increase the `throughput`, or `max` was reached. `precision` is the precision of
  the steps on this machine. `from` is `:cache` if the sizes were measured by an earlier call.
  """
  @type t :: %__MODULE__{
          spec: Spec.t(),
          rows: [row],
          batch_size: pos_integer,
          stopped: :memory | :throughput | :max,
          window_size: pos_integer,
          threads: pos_integer,
          precision: String.t(),
          memory_limit: pos_integer | nil,
          from: :measured | :cache
        }

  @doc false
  # The key of the measurements in the cache of `Sconce.Tuner`.
  def search(spec, asked) do
    %{
      kind: "batch_size",
      asked: asked,
      about: Spec.summary(spec),
      size: :batch_size,
      seconds: :step_seconds,
      speed: :frames_per_second,
      fields: [:batch_size, :step_seconds, :frames_per_second, :bytes],
      facts: [:stopped, :window_size, :threads, :precision]
    }
  end

  @doc false
  def new(%{stopped: stopped} = native, spec, from \\ :measured) do
    more = %{spec: spec, stopped: Estimate.reason!(stopped), from: from}
    struct!(__MODULE__, Map.merge(native, more))
  end

  @doc false
  def text(tuning) do
    title =
      "#{Spec.summary(tuning.spec)} · windows of #{tuning.window_size} · #{tuning.precision}" <>
        Estimate.from(tuning.from)

    rows =
      for row <- tuning.rows,
          do: {row.batch_size, row.step_seconds, row.frames_per_second, row.bytes}

    table =
      Estimate.table(["batch_size", "a step", "frames/s", "memory"], rows, tuning.batch_size)

    Estimate.text([title, table, Estimate.why(tuning.stopped, "batch", tuning.memory_limit)])
  end

  defimpl Inspect do
    def inspect(tuning, _opts) do
      sizes = Enum.map_join(tuning.rows, " ", & &1.batch_size)
      "#Sconce.Trainer.Tuning<batch_size #{tuning.batch_size} of #{sizes}>"
    end
  end

  defimpl String.Chars do
    def to_string(tuning), do: Sconce.Trainer.Tuning.text(tuning)
  end
end
