defmodule Sconce.Events do
  alias Sconce.Events.Table

  # The native events are those of `Event` in native/train/src/report.rs; a test compares them. `:pressure` and `:done` are
  # of the process of a run.
  @catalogue [
    start: [
      doc: "The corpus is read; the first step follows.",
      measurements: [
        steps: "steps of the whole run",
        epoch_steps: "steps of an epoch",
        weights: "weights of the policy",
        train_games: "training games",
        train_frames: "frames of the training games, of each player",
        validation_games: "validation games",
        validation_frames: "frames of the validation games, of each player",
        threads: "compute threads",
        skipped_views: "views of a player that are shorter than a window and left out"
      ],
      metadata: [
        precision: ~s(precision of the run, `"f32"`, `"tf32"`, `"bf16"` or `"f16"`),
        left_out:
          "training views that options such as `:stages` left out, a map of counts by reason"
      ]
    ],
    began: [
      doc:
        "A new run starts from the weights of the policy that `:policy` names; comes before `:start`.",
      measurements: [taken: "number of weight tensors that come from the policy"],
      metadata: [policy: "file of the policy", new: "names of the weights that the policy lacks"]
    ],
    precision: [
      doc:
        "The requested `:precision` gains nothing on this machine, and the run computes in f32; " <>
          "comes after `:start`.",
      measurements: [],
      metadata: [asked: "requested precision", used: "precision of the run"]
    ],
    resumed: [
      doc: "A run continues from a saved state.",
      measurements: [step: "steps of the saved state"]
    ],
    out_of_memory: [
      doc:
        "A step had too little memory, or would have by the plan; from now on fewer windows of a batch are " <>
          "computed together.",
      measurements: [
        micro_batch: "windows of a batch that are computed together",
        bytes:
          "memory of the whole run, measured or planned; nil if the device does not report it",
        memory_limit: "largest allowed bytes, nil without a limit",
        step: "steps so far"
      ]
    ],
    grown: [
      doc:
        "With `grow_micro_batch: true`, after steps that went well: from now on more windows of a batch are computed " <>
          "together again.",
      measurements: [
        micro_batch: "windows of a batch that are computed together",
        step: "steps so far"
      ]
    ],
    pressure: [
      doc:
        "A decision of `Sconce.Pressure` after memory, a deadline or a device has failed, or a size that grows again. " <>
          "One of the native side follows `:out_of_memory` or `:grown`.",
      telemetry: [:sconce, :pressure, :decision],
      measurements: [
        size: "the new size of `:smaller` and `:larger`, else nil",
        wait_ms: "milliseconds before the `:retry`, else nil",
        tries: "tries so far for this failure"
      ],
      metadata: [
        failed: "`:memory`, `:deadline` or `:device`; nil for `:larger`",
        where: "place of the table",
        decision: "`:smaller`, `:larger`, `:retry`, `:cold`, `:other_device`, `:skip` or `:stop`",
        device: "the device of `:other_device`, else nil",
        reason: "message of the error, nil without one",
        by: "`:elixir` or `:native`"
      ]
    ],
    step: [
      doc:
        "An update of the weights. If every frame of its batches has weight 0, the weights stay and loss and norm " <>
          "are 0; the weights also stay if `:overflow` follows.",
      measurements: [
        loss: "nats, over the batches of this step",
        learning_rate: "learning rate of this step",
        step: "steps so far",
        grad_norm: "norm of the gradient of all weights before the cut; nil if it overflowed f16",
        frames_per_second: "frames of the batches / second",
        step_seconds: "seconds of the step",
        data_wait: "seconds of the step spent waiting for data",
        figures:
          "further figures of the objectives by name: `teacher_kl` and `prior_kl`, the divergence from the " <>
            "teacher and from the prior in nats a frame; `value_loss`, `advantage_weight`",
        seconds: "seconds of training so far, including those before a resume"
      ],
      metadata: [
        steps: "steps of the whole run",
        epoch: "completed epochs",
        heads: "`name` and `loss` of each head, in order"
      ]
    ],
    overflow: [
      doc:
        "After a `:step` in f16 whose gradient overflowed: no weight has changed, and the loss scale is lower " <>
          "from now on.",
      measurements: [
        loss_scale: "factor on the loss from now on",
        skipped_updates: "steps so far that were skipped after an overflow",
        step: "steps so far"
      ]
    ],
    gradients: [
      doc: "Every `:gradient_report` steps, after `:step`.",
      measurements: [step: "steps so far"],
      metadata: [weights: "statistics of each weight, as in `Sconce.Trainer.gradients/1`"]
    ],
    validation: [
      doc: "The policy was scored on the validation games.",
      measurements: [
        nll: "nats a frame, sum of all heads",
        nll_changed:
          "nats a frame on frames whose action differs from the one before, nil without such frames",
        accuracy: "share of frames whose most likely value is right, mean of all heads, 0 to 1",
        step: "steps so far",
        epoch: "completed epochs",
        seconds: "seconds of the validation"
      ],
      metadata: [
        best: "whether it is the best so far",
        heads: "`name` and `nll` of each head, in order"
      ]
    ],
    epoch: [
      doc: "A pass over all windows is complete; comes after a validation of the same step.",
      measurements: [
        avg_loss: "nats, mean over the steps of the epoch",
        val_loss: "nats a frame of the latest validation, nil before the first",
        figures: "means of the figures of the steps",
        epoch: "completed epochs",
        step: "steps so far",
        seconds: "seconds of training so far"
      ],
      metadata: [heads: "`name` and mean `loss` of each head, in order"]
    ],
    checkpoint: [
      doc: "The state was saved.",
      measurements: [step: "steps so far"],
      metadata: [path: "the file"]
    ],
    save_failed: [
      doc: "A file could not be written; the run continues.",
      measurements: [step: "steps so far"],
      metadata: [path: "the file", reason: "reason of the system"]
    ],
    callback_late: [
      doc:
        "`:callback` did not return in time; its process is killed, and the run continues without a change.",
      measurements: [step: "steps so far"]
    ],
    evaluating: [
      doc: "Progress of the final scoring of the best policy.",
      measurements: [done: "frames so far, 0 at first", total: "frames to score"]
    ],
    done: [
      doc: "The run is over, with success or an error.",
      measurements: [],
      metadata: [result: "result of `Sconce.Trainer.await/2`"]
    ]
  ]

  @names Keyword.keys(@catalogue)

  @prefix [:sconce, :training]

  @moduledoc """
  The catalogue of all events of a training run.

  Each event is sent to

    * each caller of `Sconce.Trainer.subscribe/1`, as the message `{:sconce_trainer, run, event}`,
    * the function given as `:progress`,
    * the `:telemetry` handlers of `[:sconce, :training, name]`, if the host has `:telemetry`; those of `:pressure` are
      `[:sconce, :pressure, :decision]`, which decisions outside of runs use too, then without `run` and `out`.

  In a message an event is a map of `event` (its name) and the fields below. For `:telemetry` the fields are split into
  measurements and metadata, and the metadata also has `run` (the pid) and `out` (the folder of the run). The
  dependency `:telemetry` is optional.

  | event | when | measurements | metadata |
  |---|---|---|---|
  #{Table.rows(@catalogue)}

  This attaches a handler to all events:

      :telemetry.attach_many("metrics", Sconce.Events.telemetry_names(), &MyApp.Metrics.handle/4, nil)

  `all/0` returns this catalogue as data.
  """

  @type name :: unquote(Enum.reduce(Enum.reverse(@names), &{:|, [], [&1, &2]}))

  @typedoc "An event: its name as `event`, and the fields of the table above."
  @type event :: %{required(:event) => name, optional(atom) => term}

  @doc """
  Returns the catalogue: `name`, `telemetry`, `doc`, `measurements` and `metadata` of each event.

      iex> step = Sconce.Events.all() |> Enum.find(&(&1.name == :step))
      iex> step.telemetry
      [:sconce, :training, :step]
      iex> step.measurements[:data_wait]
      "seconds of the step spent waiting for data"
  """
  @spec all() :: [map]
  def all, do: Table.all(@catalogue, @prefix)

  @doc """
  Returns the names of all events.

      iex> Sconce.Events.names()
      #{inspect(@names)}
  """
  @spec names() :: [name]
  def names, do: @names

  @doc """
  Returns the names of all events in `:telemetry`, for `:telemetry.attach_many/4`.

      iex> hd(Sconce.Events.telemetry_names())
      [:sconce, :training, :start]
  """
  @spec telemetry_names() :: [[atom]]
  def telemetry_names, do: Enum.map(@names, &Table.telemetry(@catalogue, @prefix, &1))

  @doc """
  Starts `:telemetry` if this VM has it, and returns whether it does.

      iex> Sconce.Events.telemetry?() == Code.ensure_loaded?(:telemetry)
      true
  """
  @spec telemetry?() :: boolean
  def telemetry? do
    # A host's Mix task may not have started `:telemetry`, which warns at each event until it is started.
    loaded? = Code.ensure_loaded?(:telemetry)
    if loaded?, do: Application.ensure_all_started(:telemetry)
    loaded?
  end

  @doc """
  Splits an event into the measurements and the metadata of `:telemetry`.

      iex> Sconce.Events.split(%{event: :checkpoint, step: 100, path: "run/last.safetensors"})
      {%{step: 100}, %{path: "run/last.safetensors"}}
  """
  @spec split(event) :: {measurements :: map, metadata :: map}
  def split(%{event: name} = event) when name in @names, do: Table.split(@catalogue, event)

  @doc false
  # Emits the event to `:telemetry`, with `more` added to the metadata.
  @spec execute(event, map) :: :ok
  def execute(%{event: name} = event, %{} = more) when name in @names,
    do: Table.execute(@catalogue, @prefix, event, more)
end
