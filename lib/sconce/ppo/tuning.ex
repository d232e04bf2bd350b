defmodule Sconce.PPO.Tuning do
  @moduledoc """
  The number of environments with the most steps a second, and the measurements behind it, from `Sconce.PPO.tune/1`.
  `IO.puts/1` prints the table.

  Rollouts keep their length and passes their number of batches, so twice as many environments make an update of twice as
  many steps, and batches of twice the size. A run with more environments therefore has fewer updates in the same
  number of steps, and may need another learning rate.
  """

  alias Sconce.Env.Hosting
  alias Sconce.{Figures, Options}
  alias Sconce.Policy.Spec
  alias Sconce.Run.Estimate

  @enforce_keys [:env, :spec, :rows, :environments, :stopped, :rollout_steps, :minibatches] ++
                  [:threads, :memory_limit]
  defstruct @enforce_keys ++ [from: :measured]

  @options [
    max: [
      type: :pos_integer,
      default: 4096,
      max: 65_536,
      doc: "Largest number of environments that is measured."
    ],
    memory_limit: [
      type: {:or, [nil, :bytes]},
      default: nil,
      doc: "Bytes that a run may take, as in `\"8GB\"`; `nil` is the free memory."
    ],
    backoff: [
      type: :float,
      default: 0.8,
      min: 0.01,
      max: 1,
      doc: "Share of `:memory_limit` that a run may take."
    ],
    tuner: [
      type: {:or, [:boolean, nil]},
      default: nil,
      doc:
        "`false` measures without the cache of `Sconce.Tuner`; `nil` is the setting of `Sconce.Config`."
    ]
  ]

  @typedoc """
  A measured number of environments: steps and seconds of an update, the share of them that is play, and the bytes of a
  run as in a `Sconce.PPO.Plan`.
  """
  @type row :: %{
          environments: pos_integer,
          update_steps: pos_integer,
          update_seconds: float,
          rollout_share: float,
          steps_per_second: float,
          bytes: pos_integer
        }

  @typedoc """
  `environments` is the best number. `stopped` is the reason why no larger one was measured: it would not have fit into
  the `memory_limit`, the last one did not increase the `throughput`, or `max` was reached. `from` is `:cache` if
  the numbers were measured by an earlier call.
  """
  @type t :: %__MODULE__{
          env: Sconce.Env.name(),
          spec: Spec.t(),
          rows: [row],
          environments: pos_integer,
          stopped: :memory | :throughput | :max,
          rollout_steps: pos_integer,
          minibatches: pos_integer,
          threads: pos_integer,
          memory_limit: pos_integer | nil,
          from: :measured | :cache
        }

  @doc false
  def schema, do: @options

  @doc false
  def docs, do: Options.docs(@options)

  @doc false
  # The key of the measurements in the cache of `Sconce.Tuner`. The free memory is no part of it.
  def search(env, spec, {world, native, options, own}) do
    %{
      kind: "environments",
      asked: {world, native, options, Map.delete(own, :memory_limit)},
      about: "#{Hosting.label(env)} · #{Spec.summary(spec)}",
      size: :environments,
      seconds: :update_seconds,
      speed: :steps_per_second,
      fields:
        [:environments, :update_steps, :update_seconds, :rollout_share] ++
          [:steps_per_second, :bytes],
      facts: [:stopped, :rollout_steps, :minibatches, :threads]
    }
  end

  @doc false
  def new(%{stopped: stopped} = native, env, spec, from \\ :measured) do
    more = %{env: env, spec: spec, stopped: Estimate.reason!(stopped), from: from}
    struct!(__MODULE__, Map.merge(native, more))
  end

  @doc false
  def text(tuning) do
    title =
      "#{Hosting.label(tuning.env)} · #{Spec.summary(tuning.spec)} · rollouts of " <>
        "#{Figures.counted(tuning.rollout_steps, "step")} · #{tuning.minibatches} batches a pass" <>
        Estimate.from(tuning.from)

    rows =
      for row <- tuning.rows,
          do: {row.environments, row.update_seconds, row.steps_per_second, row.bytes}

    head = ["environments", "an update", "steps/s", "memory"]
    table = Estimate.table(head, rows, tuning.environments)
    Estimate.text([title, table, Estimate.why(tuning.stopped, "number", tuning.memory_limit)])
  end

  defimpl Inspect do
    def inspect(tuning, _opts) do
      numbers = Enum.map_join(tuning.rows, " ", & &1.environments)
      "#Sconce.PPO.Tuning<environments #{tuning.environments} of #{numbers}>"
    end
  end

  defimpl String.Chars do
    def to_string(tuning), do: Sconce.PPO.Tuning.text(tuning)
  end
end
