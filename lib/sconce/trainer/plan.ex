defmodule Sconce.Trainer.Plan do
  alias Sconce.{Figures, Memory}
  alias Sconce.Policy.Spec
  alias Sconce.Run.Estimate
  alias Sconce.Trainer.Report

  # The owners of memory, in the order in which they are printed.
  @owners [
    weights: "4 bytes each",
    gradients: "",
    moments: "of the optimiser",
    average: "of the weights over the steps",
    teacher: "the teachers; their passing memory is that of a step",
    activations: "of a step, most of them kept for the backward pass",
    validation: "of a validation, which runs between steps and frees it again",
    batches: "the current one and the prefetched ones",
    checkpoints: "copies that are written during the run"
  ]

  @moduledoc """
  The memory and the time that a run will take, from `Sconce.Trainer.plan/2`. `IO.puts/1` prints it in full.

  `owners` maps each owner of memory to its bytes:

  | owner | |
  |---|---|
  #{Estimate.owner_docs(@owners)}
  `bytes` is the sum at the peak, during either a step or a validation. Owners whose size depends only on the number of
  weights are computed from it. Activations and validation are measured on a few windows and extrapolated linearly;
  tests keep the result within 5 % of the bytes counted in steps of small models of every backbone. The plan counts the
  memory that the run requests. The resident memory of the process also contains the VM, the scratch memory of threads
  and pages that the allocator keeps: with 2 threads and steps of 32 windows it was 1.1 to 1.8 times as large. `mapped`
  is the size of the corpus files, which the system caches and may drop.

  `step_seconds` is measured on steps with the batch of the run, or with the largest batch whose step takes a third of a
  second and then scaled by the number of windows. It excludes waiting for data and validations.
  """

  @enforce_keys [:spec, :num_weights, :batch_size, :window_size, :accumulation_steps] ++
                  [:micro_batch, :threads, :precision, :owners, :bytes, :memory_limit, :mapped] ++
                  [:step_seconds, :frames_per_second, :epoch_steps, :steps, :seconds, :free]
  defstruct @enforce_keys

  @typedoc """
  Bytes, seconds and counts. `micro_batch` is the number of windows of a batch that are computed together; `precision`
  is the precision in which the run computes on this machine; `mapped` and `epoch_steps` are nil without a corpus;
  `steps` and `seconds` of the run are nil without a corpus and `:steps`; `free` is the free memory of this machine.
  """
  @type t :: %__MODULE__{
          spec: Spec.t(),
          num_weights: pos_integer,
          batch_size: pos_integer,
          window_size: pos_integer,
          accumulation_steps: pos_integer,
          micro_batch: pos_integer,
          threads: pos_integer,
          precision: String.t(),
          owners: %{atom => non_neg_integer},
          bytes: pos_integer,
          memory_limit: pos_integer | nil,
          mapped: non_neg_integer | nil,
          step_seconds: float,
          frames_per_second: float,
          epoch_steps: pos_integer | nil,
          steps: pos_integer | nil,
          seconds: float | nil,
          free: non_neg_integer | nil
        }

  @doc false
  def new(native, spec),
    do: struct!(__MODULE__, Map.merge(native, %{spec: spec, free: Memory.free()}))

  @doc false
  def text(plan) do
    Estimate.text([title(plan), "", memory(plan), "", time(plan)])
  end

  @doc false
  def summary(plan) do
    parts = [
      Spec.summary(plan.spec),
      "#{Figures.grouped(plan.batch_size)} windows of #{plan.window_size}",
      Figures.size(plan.bytes),
      "#{Estimate.duration(plan.step_seconds)} a step"
    ]

    run = if plan.seconds, do: ["#{Estimate.duration(plan.seconds)} in all"], else: []
    Enum.join(parts ++ run, " · ")
  end

  defp title(plan) do
    batches = if plan.accumulation_steps > 1, do: " x #{plan.accumulation_steps}", else: ""

    [
      Report.title(plan.spec, plan.num_weights),
      "a step of #{Figures.grouped(plan.batch_size)}#{batches} windows of #{plan.window_size} " <>
        "frames, #{Estimate.threads(plan.threads)}, #{plan.precision}#{parts(plan)}"
    ]
  end

  defp parts(%{micro_batch: windows, batch_size: batch}) when windows < batch,
    do: ", #{Figures.grouped(windows)} windows at a time to fit into the memory"

  defp parts(_whole), do: ""

  defp memory(plan) do
    mapped = if plan.mapped, do: [Estimate.size("mapped", plan.mapped, "the corpus")], else: []
    Estimate.memory(plan, @owners) ++ mapped
  end

  defp time(plan) do
    pace = "#{Figures.grouped(round(plan.frames_per_second))} frames/s"
    step = Estimate.line("a step", Estimate.duration(plan.step_seconds), pace)
    [step | span("an epoch", plan.epoch_steps, plan) ++ span("the run", plan.steps, plan)]
  end

  defp span(_name, nil, _plan), do: []

  defp span(name, steps, plan) do
    steps_text = "#{Figures.grouped(steps)} steps, validations not in it"
    [Estimate.line(name, Estimate.duration(steps * plan.step_seconds), steps_text)]
  end

  defimpl Inspect do
    def inspect(plan, _opts), do: "#Sconce.Trainer.Plan<#{Sconce.Trainer.Plan.summary(plan)}>"
  end

  defimpl String.Chars do
    def to_string(plan), do: Sconce.Trainer.Plan.text(plan)
  end
end
