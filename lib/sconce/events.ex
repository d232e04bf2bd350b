defmodule Sconce.Events do
  # The native events are those of `Event` in native/train/src/report.rs; a test compares them.
  @catalogue [
    start: [
      doc: "The corpus is read and the first step about to begin.",
      measurements: [
        steps: "steps of the whole run",
        epoch_steps: "steps of an epoch",
        weights: "weights of the policy",
        train_games: "games to train on",
        train_frames: "frames of them, of each player",
        validation_games: "games to measure on",
        validation_frames: "frames of them, of each player",
        threads: "threads that compute",
        skipped_views: "players' games that are shorter than a window, and left out"
      ],
      metadata: [precision: ~s(what the run computes in, `"f32"`, `"bf16"` or `"f16"`)]
    ],
    began: [
      doc:
        "A new run begins with the weights of the policy that `:policy` names; comes before `:start`.",
      measurements: [taken: "weights that are its own, counted by their names"],
      metadata: [policy: "its file", new: "names of the weights that it does not have"]
    ],
    precision: [
      doc:
        "The `:precision` that was asked for gains nothing on this machine, and the run computes in f32; " <>
          "comes after `:start`.",
      measurements: [],
      metadata: [asked: "what was asked for", used: "what the run computes in"]
    ],
    resumed: [
      doc: "A run goes on where an earlier one ended.",
      measurements: [step: "steps that were made before"]
    ],
    out_of_memory: [
      doc:
        "A step had too little memory, or would have by the plan, and fewer windows are worked " <>
          "through together from now on.",
      measurements: [
        micro_batch: "windows that are worked through together, of each batch",
        bytes: "what it would have taken or took, the whole run; nil where a device did not say",
        memory_limit: "bytes that it may take, nil without a limit",
        step: "steps so far"
      ]
    ],
    step: [
      doc:
        "The weights have changed. Where every frame of the batches weighs nothing they have not, and " <>
          "loss and norm are 0; nor have they where `:overflow` follows.",
      measurements: [
        loss: "nats, of this step's batches",
        learning_rate: "of this step",
        step: "steps so far",
        grad_norm:
          "length of the gradient of all weights, before it was cut; nil where it overflowed f16",
        frames_per_second: "frames of the batches / second",
        step_seconds: "seconds that the step took",
        data_wait: "seconds of them that it waited for data",
        figures:
          "what else its objectives tell, by name: `teacher_kl`, nats a frame that its choices are " <>
            "from the teacher's, `prior_kl` from the prior's",
        seconds: "seconds of training so far, those of earlier runs among them"
      ],
      metadata: [
        steps: "steps of the whole run",
        epoch: "epochs that are over",
        heads: "`name` and `loss` of each head, in their order"
      ]
    ],
    overflow: [
      doc:
        "After a `:step` in f16 whose gradient overflowed: no weight has changed, and the loss is scaled " <>
          "by less from now on.",
      measurements: [
        loss_scale: "what the loss is multiplied by from now on",
        skipped_updates: "steps so far that have changed nothing for this",
        step: "steps so far"
      ]
    ],
    gradients: [
      doc: "Each `:gradient_report` steps, after `:step`.",
      measurements: [step: "steps so far"],
      metadata: [weights: "what `Sconce.Trainer.gradients/1` has of each weight, by their names"]
    ],
    validation: [
      doc: "The policy was scored on games that it does not learn from.",
      measurements: [
        nll: "nats a frame, all heads added",
        nll_changed:
          "nats a frame whose action differs from the one before, nil where there is none",
        accuracy: "share of right most likely values, the mean of all heads, 0 to 1",
        step: "steps so far",
        epoch: "epochs that are over",
        seconds: "seconds that the validation took"
      ],
      metadata: [
        best: "whether it is the best so far",
        heads: "`name` and `nll` of each head, in their order"
      ]
    ],
    epoch: [
      doc: "All windows were seen once more; comes after a validation of the same step.",
      measurements: [
        avg_loss: "nats, mean over the steps of the epoch",
        val_loss: "nats a frame of the latest validation, nil before the first",
        figures: "the means of those of the steps",
        epoch: "epochs that are over",
        step: "steps so far",
        seconds: "seconds of training so far"
      ],
      metadata: [heads: "`name` and mean `loss` of each head, in their order"]
    ],
    checkpoint: [
      doc: "The state was written.",
      measurements: [step: "steps so far"],
      metadata: [path: "the file"]
    ],
    save_failed: [
      doc: "A file could not be written; the run goes on.",
      measurements: [step: "steps so far"],
      metadata: [path: "the file", reason: "why"]
    ],
    callback_late: [
      doc:
        "What `:callback` was to say did not come in time; it is ended, and the run goes on as it was.",
      measurements: [step: "steps so far"]
    ],
    evaluating: [
      doc: "The best policy is being scored, at the end.",
      measurements: [done: "frames so far, the first time 0", total: "frames to score"]
    ],
    done: [
      doc: "The run is over, whatever its end.",
      measurements: [],
      metadata: [result: "what `Sconce.Trainer.await/2` returns"]
    ]
  ]

  @names Keyword.keys(@catalogue)

  fields = fn fields -> Enum.map_join(fields, "; ", fn {key, doc} -> "`#{key}` #{doc}" end) end

  rows =
    for {name, event} <- @catalogue do
      measurements = fields.(event[:measurements])
      "| `:#{name}` | #{event[:doc]} | #{measurements} | #{fields.(event[:metadata] || [])} |\n"
    end

  @moduledoc """
  Everything that a training run tells, in one place.

  An event reaches

    * whoever called `Sconce.Trainer.subscribe/1`, as the message `{:sconce_trainer, run, event}`,
    * the function given as `:progress`,
    * where the host has `:telemetry`, the handlers of `[:sconce, :training, name]`.

  As a message it is a map of `event` (its name) and all that stands below. For `:telemetry` that is
  split into measurements and metadata, and the metadata has `run` (the pid) and `out` (the run's
  folder) as well. Nothing here needs `:telemetry`: where a host has none, none is called.

  | event | when | measurements | metadata |
  |---|---|---|---|
  #{rows}

  A handler for all of them:

      :telemetry.attach_many("metrics", Sconce.Events.telemetry_names(), &MyApp.Metrics.handle/4, nil)

  The same as data:

      iex> step = Sconce.Events.all() |> Enum.find(&(&1.name == :step))
      iex> step.telemetry
      [:sconce, :training, :step]
      iex> step.measurements[:data_wait]
      "seconds of them that it waited for data"
  """

  @type name :: unquote(Enum.reduce(Enum.reverse(@names), &{:|, [], [&1, &2]}))

  @typedoc "What a run tells: its name as `event`, and the fields of the table above."
  @type event :: %{required(:event) => name, optional(atom) => term}

  @doc "The catalogue: `name`, `telemetry`, `doc`, and what stands in `measurements` and `metadata`."
  @spec all() :: [map]
  def all do
    for {name, event} <- @catalogue do
      %{
        name: name,
        telemetry: telemetry_name(name),
        doc: event[:doc],
        measurements: event[:measurements],
        metadata: event[:metadata] || []
      }
    end
  end

  @doc """
  The names of all events.

      iex> Sconce.Events.names()
      #{inspect(@names)}
  """
  @spec names() :: [name]
  def names, do: @names

  @doc "The names that `:telemetry` knows them by, for `:telemetry.attach_many/4`."
  @spec telemetry_names() :: [[atom]]
  def telemetry_names, do: Enum.map(@names, &telemetry_name/1)

  @doc "Whether this VM has `:telemetry`, which is then started."
  @spec telemetry?() :: boolean
  def telemetry? do
    # A Mix task of a host need not have started it, and it complains of each event until it is.
    loaded? = Code.ensure_loaded?(:telemetry)
    if loaded?, do: Application.ensure_all_started(:telemetry)
    loaded?
  end

  @doc """
  An event as `:telemetry` has it: measurements and metadata.

      iex> Sconce.Events.split(%{event: :checkpoint, step: 100, path: "run/last.safetensors"})
      {%{step: 100}, %{path: "run/last.safetensors"}}
  """
  @spec split(event) :: {measurements :: map, metadata :: map}
  def split(%{event: name} = event) when name in @names do
    measured = Keyword.keys(@catalogue[name][:measurements])
    event |> Map.delete(:event) |> Map.split(measured)
  end

  @doc "Executes an event's `:telemetry`, with `more` in its metadata."
  @spec execute(event, map) :: :ok
  def execute(%{event: name} = event, %{} = more) when name in @names do
    {measurements, metadata} = split(event)
    event = [telemetry_name(name), measurements, Map.merge(metadata, more)]

    # Whether it runs is not asked here: while the VM stops, the application controller has no answer.
    if function_exported?(:telemetry, :execute, 3),
      # Not a call that the compiler sees: a host without it is not warned.
      do: apply(:telemetry, :execute, event),
      else: :ok
  end

  defp telemetry_name(name), do: [:sconce, :training, name]
end
