defmodule Sconce.Trainer.Catalogue do
  @moduledoc false
  # The options of `Sconce.Trainer` as tables, each in the form of `Sconce.Options`.

  alias Sconce.{Device, Loader, Options}
  alias Sconce.Trainer.Optimiser

  # Defaults and bounds are those of `TrainOptions` in native/train/src/options; tests compare them.
  @own [
    batch_size: [type: :pos_integer, default: 64, max: 65_536, doc: "Windows in a batch."],
    accumulation_steps: [
      type: :pos_integer,
      default: 1,
      max: 65_536,
      doc: "Batches whose mean gradient makes one step, in the memory of one."
    ],
    window_size: [
      type: :pos_integer,
      default: 60,
      max: 65_536,
      doc: "Frames in a window; each has its loss. Attention sees as many."
    ],
    stride: [
      type: :pos_integer,
      default: 30,
      max: 1_000_000_000,
      doc: "Frames between the starts of neighbouring windows; carried, they follow each other."
    ],
    unroll: [
      type: {:in, [:window, :carry]},
      default: :window,
      doc:
        "Windows from anywhere, each from a zero state; or each row of the batch walks through whole " <>
          "games, its state handed on from step to step."
    ],
    truncate_bptt: [
      type: {:or, [:pos_integer, nil]},
      default: nil,
      max: 65_536,
      doc:
        "The most frames that a gradient goes back through. A longer window is cut into chunks of this " <>
          "length, and takes the memory of one chunk. `nil`: the whole window is one chunk."
    ],
    gradient_checkpoint: [
      type: :boolean,
      default: false,
      doc:
        "On a CPU: keeps of each block only what it read and runs it again, for less memory and more time."
    ],
    checkpoint_every: [
      type: :pos_integer,
      default: 1,
      max: 1024,
      doc: "Blocks that `:gradient_checkpoint` runs again together."
    ],
    epochs: [type: :pos_integer, default: 10, max: 1_000_000, doc: "Passes over all windows."],
    steps: [
      type: {:or, [:pos_integer, nil]},
      default: nil,
      max: 1_000_000_000,
      doc: "Updates of the weights, instead of `:epochs`."
    ],
    max_minutes: [
      type: {:or, [:float, nil]},
      default: nil,
      min: 0.001,
      max: 1_000_000,
      doc: "Ends the run; the schedule then follows the clock where that is ahead of the steps."
    ],
    learning_rate: [
      type: :float,
      default: 1.0e-3,
      min: 0,
      max: 1000,
      doc: "At the end of the warm-up."
    ],
    lr_schedule: [
      type: {:in, [:constant, :linear, :cosine, :cosine_restarts, :exponential]},
      default: :cosine,
      doc: "How it falls after the warm-up, see below."
    ],
    warmup_steps: [
      type: :non_neg_integer,
      default: 100,
      max: 1_000_000_000,
      doc: "Steps in which it rises; never more than half of the run."
    ],
    decay_steps: [
      type: {:or, [:pos_integer, nil]},
      default: nil,
      max: 1_000_000_000,
      doc:
        "Steps in which it falls; `nil` is all that are left of the run, of one that goes on those " <>
          "that were left when it began."
    ],
    decay_rate: [
      type: :float,
      default: 0.95,
      min: 0,
      max: 1,
      doc: "What `:exponential` leaves of it after `:decay_steps`."
    ],
    restart_period: [
      type: :pos_integer,
      default: 1000,
      max: 1_000_000_000,
      doc: "Steps before the first restart of `:cosine_restarts`."
    ],
    restart_mult: [
      type: :pos_integer,
      default: 2,
      max: 1000,
      doc: "How many times as long as the one before each further period is."
    ],
    optimizer: [type: {:in, Optimiser.names()}, default: :adamw, doc: "What moves the weights."],
    weight_decay: [
      type: {:or, [:float, nil]},
      default: nil,
      min: 0,
      max: 1000,
      doc: "Of matrices, never of biases and norms; `nil` is the optimizer's own."
    ],
    beta1: [
      type: {:or, [:float, nil]},
      default: nil,
      min: 0,
      max: 1,
      doc: "What the mean of gradients keeps of itself; `nil` is the optimizer's own."
    ],
    beta2: [
      type: {:or, [:float, nil]},
      default: nil,
      min: 0,
      max: 1,
      doc: "What the mean of squares keeps of itself; `nil` is the optimizer's own."
    ],
    eps: [
      type: {:or, [:float, nil]},
      default: nil,
      min: 0,
      max: 1,
      doc: "Added to what an update is divided by; `nil` is the optimizer's own."
    ],
    momentum: [
      type: {:or, [:float, nil]},
      default: nil,
      min: 0,
      max: 1,
      doc: "Of `:sgd`; `nil` is its own."
    ],
    nesterov: [type: :boolean, default: false, doc: "Looks a step of `:momentum` ahead."],
    ema_decay: [
      type: {:or, [:float, nil]},
      default: nil,
      min: 0,
      max: 1,
      doc:
        "Keeps an average of the weights over the steps, by which the policy is validated and saved " <>
          "as the best, see below."
    ],
    max_grad_norm: [
      type: :float,
      default: 1.0,
      doc: "A gradient of all weights that is longer is cut to this length."
    ],
    precision: [
      type: {:in, [:f32, :bf16, :f16]},
      default: :f32,
      doc:
        "What operands of products are rounded to, see below; all else is f32. What gains nothing on " <>
          "this machine gives way to f32: on a CPU all but `:bf16` on a matrix unit."
    ],
    force_precision: [
      type: :boolean,
      default: false,
      doc: "Computes in `:precision` also where that is slower than f32."
    ],
    burn_in: [
      type: :non_neg_integer,
      default: 0,
      max: 65_535,
      doc: "Frames at the start of a window that carry no loss; carried, at the start of a game."
    ],
    loss: [type: {:or, [:plain, :keyword]}, default: [], doc: "What is made small, see below."],
    seed: [type: :non_neg_integer, default: 0, doc: "Of everything random."],
    val_split: [
      type: :float,
      default: 0.1,
      min: 0,
      max: 1,
      doc:
        "Share of the games that is measured on and never trained on. Games are dealt out before " <>
          "`:characters` and `:players` choose among the views of each side."
    ],
    validation: [
      type: :any,
      default: nil,
      doc: "A corpus of its own to measure on; then no game of the other is held back."
    ],
    validate_every: [
      type: {:or, [:pos_integer, nil]},
      default: nil,
      max: 1_000_000_000,
      doc: "Steps between validations; `nil` is an epoch."
    ],
    save_every: [
      type: {:or, [:pos_integer, nil]},
      default: nil,
      max: 1_000_000_000,
      doc: "Steps between saves of the state, beside those of validations."
    ],
    save_minutes: [
      type: {:or, [:float, nil]},
      default: 5.0,
      min: 0,
      max: 1_000_000,
      doc: "Minutes between them, beside or instead of `:save_every`; `nil` is none."
    ],
    keep_last: [
      type: :non_neg_integer,
      default: 0,
      max: 1_000_000,
      doc: "How many of the latest states stay under numbered names, see below."
    ],
    keep_best: [
      type: :non_neg_integer,
      default: 0,
      max: 1_000_000,
      doc: "How many policies of the best validations stay under numbered names."
    ],
    validation_mode: [
      type: {:in, [:window, :carry]},
      default: :window,
      doc: "The policy on the last window, or its memory carried through the game."
    ],
    validation_stride: [
      type: :pos_integer,
      default: 10,
      max: 1_000_000_000,
      doc: "Validations score every n-th frame; the final evaluation scores all."
    ],
    patience: [
      type: {:or, [:pos_integer, nil]},
      default: nil,
      max: 1_000_000_000,
      doc: "Validations without a better one before the run ends early."
    ],
    min_delta: [
      type: :float,
      default: 0.0,
      min: 0,
      max: 1_000_000,
      doc: "How much better is better, in nats."
    ],
    teacher: [
      type: {:or, [:path, nil]},
      default: nil,
      doc: "File of a frozen policy to stay close to, see below."
    ],
    scheduled_sampling: [
      type: :float,
      default: 0.0,
      min: 0,
      max: 1,
      doc: "Probability of an input that is read as the policy would have given it, see below."
    ],
    scheduled_sampling_steps: [
      type: :non_neg_integer,
      default: 0,
      max: 1_000_000_000,
      doc: "Steps in which that rises evenly from 0."
    ],
    scheduled_sampling_slots: [
      type: {:or, [:pos_integer, nil]},
      default: nil,
      max: 256,
      doc: "Of the inputs that a frame reads how many it concerns, newest first; `nil` is all."
    ],
    teacher_weight: [
      type: :float,
      default: 0.1,
      min: 0,
      max: 1_000_000,
      doc: "How much of the divergence from it is added to the loss."
    ],
    teacher_direction: [
      type: {:in, [:forward, :reverse]},
      default: :forward,
      doc: "KL(policy || teacher), or the other way round."
    ],
    gradient_report: [
      type: {:or, [:pos_integer, nil]},
      default: nil,
      max: 1_000_000_000,
      doc:
        "Steps between looks at the gradient of each weight, see `gradients/1`; `nil` never looks."
    ],
    fit_prior: [
      type: :boolean,
      default: true,
      doc: "Starts a `prior: true` of the heads at log P(a_t given a_{t-1})."
    ],
    evaluate: [type: :boolean, default: true, doc: "Scores the best policy at the end."],
    memory_limit: [
      type: {:or, [nil, :bytes]},
      default: nil,
      doc:
        "Bytes that the run may take, as in `\"8GB\"`, see below. `nil` cuts no batch: a run for which " <>
          "less is available than it needs is refused."
    ],
    resume: [
      type: :boolean,
      default: false,
      doc: "Goes on with the run in `:out`, whose options are its own, see below."
    ],
    threads: [
      type: {:or, [:pos_integer, nil]},
      default: nil,
      max: 4096,
      doc: "Of the native side; `nil` is that of `Sconce.Config`, or leaves them as they are."
    ]
  ]

  @training Enum.reduce([:frame_weights, :sampling, :prefetch], @own, &(&2 ++ Loader.schema(&1)))

  @loss [
    button_weight: [type: :float, default: 2.0, min: 0, doc: "Factor on heads of bits."],
    bernoulli_reduction: [
      type: {:in, [:mean, :sum]},
      default: :mean,
      doc: "Over the bits of a head."
    ],
    pos_weight: [
      type: {:or, [:auto, nil, {:list, :float}]},
      default: :auto,
      doc: "Factor on pressed bits; `:auto` takes it from how rare they are."
    ],
    label_smoothing: [type: :float, default: 0.1, min: 0, max: 1, doc: "Of classes, never bits."],
    focal_gamma: [type: {:or, [:float, nil]}, default: 3.0, doc: "Exponent of the focal factor."],
    focal_heads: [type: {:in, [:all, :bernoulli]}, default: :all, doc: "Heads that have it."],
    stick_edge_weight: [
      type: {:or, [:float, nil]},
      default: 2.0,
      doc: "Weight of the main stick at its edge; 1 at its centre."
    ],
    entropy_weight: [type: :float, default: 0.01, doc: "Of the entropy, which is subtracted."],
    head_normalize: [type: :boolean, default: false, doc: "Divides each head by its mean loss."],
    clamp: [type: :float, default: 60.0, min: 0, doc: "Logits are cut to this on both sides."]
  ]

  @run [
         corpus: [
           type: :any,
           required: true,
           doc: "A `Sconce.Corpus`, or the folder of one; a run that goes on knows its own."
         ],
         out: [type: :path, required: true, doc: "The run's folder, made if need be."],
         preset: [
           type: :any,
           default: nil,
           doc: "Name of a `Sconce.Preset`; every option that is given is worth more."
         ],
         spec: [type: :any, default: nil, doc: "A `Sconce.Policy.Spec` instead of its options."],
         progress: [
           type: {:or, [{:fun, 1}, nil]},
           default: nil,
           doc: "Called with each event, in the run's process."
         ]
       ] ++ Device.run_option() ++ @training

  @scored [
    train: [type: :any, default: nil, doc: "The training corpus; without it no baselines."],
    mode: [
      type: {:in, [:window, :carry]},
      default: :window,
      doc: "The policy on the last window, or its memory carried through the game."
    ],
    window_size: [
      type: {:or, [:pos_integer, nil]},
      default: nil,
      max: 65_536,
      doc: "`nil`: the training's."
    ],
    stride: [
      type: :pos_integer,
      default: 1,
      max: 1_000_000_000,
      doc: "Every n-th frame is scored."
    ],
    frame_delay: [
      type: {:or, [:non_neg_integer, nil]},
      default: nil,
      max: 10_000,
      doc: "`nil`: the training's, of several the shortest."
    ],
    threads: [
      type: {:or, [:pos_integer, nil]},
      default: nil,
      max: 4096,
      doc: "Of the native side; `nil` is that of `Sconce.Config`, or leaves them as they are."
    ],
    precision: [
      type: {:in, [:f32, :bf16, :f16]},
      default: :f32,
      doc: "What operands of products are rounded to, also where that gains nothing."
    ],
    progress: [type: {:or, [{:fun, 1}, nil]}, default: nil, doc: "Called with `:evaluating`."]
  ]
  @evaluate @scored ++ Device.option()

  # Any option of a run may stand beside these, including one that has no effect.
  @tune [
    initial: [type: :pos_integer, default: 32, max: 65_536, doc: "Windows of the first batch."],
    max: [type: :pos_integer, default: 4096, max: 65_536, doc: "Windows of the largest."],
    backoff: [
      type: :float,
      default: 0.8,
      min: 0.01,
      max: 1,
      doc: "Share of `:memory_limit` that a batch may take."
    ]
  ]

  @range [
    start_lr: [type: :float, default: 1.0e-7, max: 1000, doc: "The first learning rate."],
    end_lr: [type: :float, default: 10.0, max: 1000, doc: "The last."],
    num_it: [
      type: :pos_integer,
      default: 100,
      max: 1_000_000,
      doc: "Steps from one to the other."
    ]
  ]

  # A run as it is measured beforehand, which needs neither games nor a folder.
  @measured Keyword.merge(
              @run,
              [
                corpus: [type: :any, default: nil],
                out: [type: {:or, [nil, :path]}, default: nil]
              ] ++ Device.option()
            )

  @schemas %{
    run: @run,
    training: @training,
    loss: @loss,
    evaluate: @evaluate,
    plan: [],
    tune: @tune,
    range: @range,
    measured: @measured
  }

  # Each option of the loss at the value that leaves the plain NLL.
  @plain %{
    button_weight: 1.0,
    bernoulli_reduction: "sum",
    pos_weight: "none",
    label_smoothing: 0.0,
    focal_gamma: nil,
    stick_edge_weight: nil,
    entropy_weight: 0.0,
    head_normalize: false
  }

  @doc "A table of options by its name."
  def schema(name), do: Map.fetch!(@schemas, name)

  def docs(name), do: name |> schema() |> Options.docs()

  @doc "The loss options of the plain NLL, as the native side has them."
  def plain, do: @plain

  @doc "Whether a loss, as a report has it, is the plain NLL."
  def plain?(loss), do: Map.take(loss, Map.keys(@plain)) == @plain
end
