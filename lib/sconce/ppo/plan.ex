defmodule Sconce.PPO.Plan do
  alias Sconce.Env.Hosting
  alias Sconce.{Figures, Memory}
  alias Sconce.Policy.Spec
  alias Sconce.Run.Estimate
  alias Sconce.Trainer.Report

  # The owners of memory, in the order in which they are printed.
  @owners [
    weights: "4 bytes each, in each copy of the policy that learns",
    gradients: "",
    moments: "of the optimiser",
    teacher: "the teachers",
    opponents: "policies of the league",
    environments: "native worlds, and the memories of policies in them",
    best: "the best policy, until it is written",
    playing: "the policy that plays",
    rollout: "the steps that are learned from",
    activations: "of a batch, most of them kept for the backward pass",
    checkpoints: "copies of the state, written between updates"
  ]

  @moduledoc """
  The memory and the time that a run will take, from `Sconce.PPO.plan/1`. `IO.puts/1` prints it in full.

  `owners` maps each owner of memory to its bytes:

  | owner | |
  |---|---|
  #{Estimate.owner_docs(@owners)}
  `bytes` is the sum at the peak, during either an update or a save: `playing`, `rollout` and `activations` are freed
  before a save. A batch of at least 256 steps of a policy with at most a million weights is cut in two, and two copies
  of the policy learn side by side. Memory is measured in small runs on one thread and extrapolated linearly; tests keep
  the result within 5 % of the bytes counted in runs. As in a `Sconce.Trainer.Plan`, the resident memory of the process
  is larger. The memory of modules (`Sconce.Env.World`) is that of the VM, and not part of the plan.

  With `overlap: true` a second rollout and its policy count too, and `rollout_share` is that of play beside the update.

  `update_seconds` is the mean of updates of the run's own size, or if one takes more than a second, of a shorter
  rollout whose steps are assumed to take as long. `seconds` are those of all updates, without saves; a run that reaches
  its `:target_return` ends earlier. A policy with memory learns from sequences, which ends of episodes cut and which are
  then padded. `seconds` assume that episodes stay as short as those of the first policy, and `least_seconds` that they
  become much longer than `:sequence_length`. Both are equal for a policy without memory.
  """

  @enforce_keys [:env, :spec, :num_weights, :rows, :update_steps, :batches, :copies, :threads] ++
                  [:owners, :bytes, :update_seconds, :rollout_share, :steps_per_second] ++
                  [:updates, :steps, :seconds, :least_seconds, :free]
  defstruct @enforce_keys

  @typedoc """
  Bytes, seconds and counts. `rows` play side by side, one for each seat that learns; an update has `update_steps` of all
  rows, and `batches` in all its passes; `copies` of the policy learn side by side; `rollout_share` is the share of
  `update_seconds` that is play; `free` is the free memory of this machine.
  """
  @type t :: %__MODULE__{
          env: Sconce.Env.name(),
          spec: Spec.t(),
          num_weights: pos_integer,
          rows: pos_integer,
          update_steps: pos_integer,
          batches: pos_integer,
          copies: pos_integer,
          threads: pos_integer,
          owners: %{atom => non_neg_integer},
          bytes: pos_integer,
          update_seconds: float,
          rollout_share: float,
          steps_per_second: float,
          updates: pos_integer,
          steps: pos_integer,
          seconds: float,
          least_seconds: float,
          free: non_neg_integer | nil
        }

  @doc false
  def new(native, env, spec),
    do: struct!(__MODULE__, Map.merge(native, %{env: env, spec: spec, free: Memory.free()}))

  @doc false
  def text(plan),
    do: Estimate.text([title(plan), "", Estimate.memory(plan, @owners), "", time(plan)])

  @doc false
  def summary(plan) do
    Enum.join(
      [
        Hosting.label(plan.env),
        Spec.summary(plan.spec),
        Figures.size(plan.bytes),
        "#{Figures.grouped(round(plan.steps_per_second))} steps/s",
        "#{Estimate.duration(plan.seconds)} in all"
      ],
      " · "
    )
  end

  defp title(plan) do
    [
      "#{Hosting.label(plan.env)} · #{Report.title(plan.spec, plan.num_weights)}",
      "an update of #{Figures.counted(plan.update_steps, "step")} in #{Figures.counted(plan.rows, "row")}, " <>
        "#{Figures.grouped(plan.batches)} batches#{copies(plan)}, #{Estimate.threads(plan.threads)}"
    ]
  end

  defp copies(%{copies: 1}), do: ""
  defp copies(%{copies: copies}), do: " in #{copies} parts"

  defp time(plan) do
    pace = "#{Figures.grouped(round(plan.steps_per_second))} steps/s"
    share = "#{round(100 * plan.rollout_share)} % of it play"
    count = "#{Figures.counted(plan.updates, "update")}, #{Figures.grouped(plan.steps)} steps"

    least =
      if plan.least_seconds < 0.95 * plan.seconds,
        do: [Estimate.line("", Estimate.duration(plan.least_seconds), "if episodes become long")],
        else: []

    [
      Estimate.line("an update", Estimate.duration(plan.update_seconds), "#{pace}, #{share}"),
      Estimate.line("the run", Estimate.duration(plan.seconds), "#{count}, saves not in it")
    ] ++ least
  end

  defimpl Inspect do
    def inspect(plan, _opts), do: "#Sconce.PPO.Plan<#{Sconce.PPO.Plan.summary(plan)}>"
  end

  defimpl String.Chars do
    def to_string(plan), do: Sconce.PPO.Plan.text(plan)
  end
end
