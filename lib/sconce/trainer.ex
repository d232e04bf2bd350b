# Long: the docs of a run stand here, beside its API and its process.
defmodule Sconce.Trainer do
  alias Sconce.Trainer.{Catalogue, Optimiser, Settings, Table}

  @moduledoc """
  A training run: imitation of the games of a `Sconce.Corpus`, from a Spec to a checkpoint and a
  report. The work is done by a native thread; this process starts it, tells what happens and keeps
  the outcome.

      {:ok, run} = Sconce.Trainer.start_link(corpus: "corpus", out: "run", backbone: :gru)
      {:ok, report} = Sconce.Trainer.await(run)
      IO.puts(Sconce.Trainer.Report.format(report))

  The split into training and validation is by game. The folder `out` belongs to one run and holds
  at its end

    * `best.safetensors` - the policy of the best validation,
    * `run.json` - what the run was told, and `last.safetensors` - its last state, with all that
      `resume: true` needs to go on,
    * `report.json` - the report, and `curve.svg`, see `Sconce.Trainer.Curve`,
    * with `:gradient_report`, `gradients.jsonl` and `gradients.svg`, see `gradients/1`.

  Two runs of one seed give the same weights to the last bit, whatever the number of threads.

  ## Checkpoints

  Both are written by a thread of its own from a copy, while the run goes on, beside their place and
  renamed: a run that is killed at any moment leaves whole files, and goes on from there to the bits
  that it would have reached. They are written

    * after each validation, the policy only if it is the best so far,
    * each `:save_every` steps and each `:save_minutes`, by default every 5 minutes; one that falls into the time
      of another is made after it,
    * when the run is stopped, fails or ends.

  With `keep_last: n` the n latest states stay as `last-00001000.safetensors` with the number of their
  step; copied over `last.safetensors`, one is where `resume: true` goes on. With `keep_best: n` the
  policies of the n best validations stay as `best-00001000.safetensors`. Each file has a SHA-256 of what it
  holds: one that was damaged since is an error of kind `:corrupt` that says what is left.

  A file that cannot be written, on a full disk say, stops nothing: the one before it stays, the event
  `:save_failed` and the report's `saves` name it, and the next save tries again. What is not finite is
  not written. A run that could write none of its states ends with an error of kind `:io` whose `details` have
  the `path` and the `reason` of the last failure and the `report`.

  ## Going on

  With `resume: true` the run in the folder `:out` goes on from its last state, or from its beginning
  where it was killed before it saved one. A folder without a run is an error of kind `:not_found`. The
  folder knows the run's corpus, Spec and options (`run.json`), so that nothing has to be said again:

      {:ok, run} = Sconce.Trainer.start_link(resume: true, out: "run")

  What is said counts in the place of what is recorded: a run goes on on its own device, or on `device: :cpu` if
  that is said. May change:

    * when the run ends: `:steps`, `:epochs`, `:max_minutes`, `:patience`, `:min_delta`, `:evaluate`, and
      with it `:decay_steps`, as below;
    * when it is measured, saved and told of: `:validate_every`, `:save_every`, `:save_minutes`,
      `:keep_last`, `:keep_best`, `:gradient_report`, `:progress`, `:callback`, `:callback_every`, `:callback_ms`;
    * how it is computed: `:threads`, `:device`, `:memory_limit` (a batch that was cut into parts stays so),
      `:prefetch`, `:loader_threads`, `:loader_deadline_ms`, `:gradient_checkpoint`, `:checkpoint_every`;
      `:precision` and `:force_precision`, if the run still computes in what it did;
    * where its games are, `:corpus` and `:validation`, if they are the same games, and its `:teacher`, if it
      is the same file.

  Everything else would make it another run: what differs is an error of kind `:mismatch`, whose
  `details` have all `differences` (`option`, `recorded`, `given`). An optimiser's own number is the same
  whether it is said or not, and what follows from an option that differs is not named beside it.

  A run that is made longer (`steps: 2000`, or more `:epochs`) or shorter keeps its schedule: warm-up and
  decay are as long as they were when it began, and from then on stand in its options as `:warmup_steps` and
  `:decay_steps`. `:exponential` falls on at its pace, `:constant` and `:cosine_restarts` know no end. A
  `:cosine` or `:linear` that has come to 0 would learn nothing any more, so that more steps than it has
  are refused unless `:decay_steps` is said beside them: it stretches the fall, and the learning rate jumps
  at this step to where the longer schedule has it. What follows the clock of `:max_minutes` follows that of
  the new minutes.

  ## Several corpora

  `mix: [{"ranked", 0.3}, {"old", 0.5, 0.1}]` draws 3 of 10 windows from the corpus in `ranked`, and from that in `old`
  5 of 10 at first and 1 of 10 from step `:mix_steps` on; the others are the corpus' own. They are of the same game, read
  and drawn as its windows are (by `:weights` only its own). Shares of more than 1 together are refused, and so is a corpus
  with games that the run is measured on. On a command line: `--mix ranked=0.3,old=0.5..0.1`.

  ## Callbacks

  `callback: fun` is called between two steps, each `:callback_every` of them, with what was seen last:
  `%{step: event, validation: event}`, the latter nil before the first. The run waits for what it returns, no longer than
  `:callback_ms`:

    * `:ok` goes on,
    * `{:learning_rate, rate}` goes on with that rate, whatever the schedule says; it stays, also in a run that
      goes on with `resume: true`,
    * `:stop` ends the run as `stop/1` does.

  It runs in a process of its own, so that it may ask the run (`info/1`) and wait. One that is late is ended and told by
  `:callback_late`; one that raises, or returns anything else, is given up with a warning. Neither ends the run.

      callback: fn
        %{validation: %{nll: nll}} when nll < 1.2 -> :stop
        %{step: %{loss: loss}} when loss > 3 -> {:learning_rate, 1.0e-4}
        _seen -> :ok
      end

  ## Beginning with a policy

  `policy: "best.safetensors"` gives a run the weights of a policy, and its Spec where no other is said. Embedding and backbone
  have to be the policy's. Heads may be others: what the policy does not have is new, and the event `:began` names it.
  `:freeze` lists parts that stay what they are, and need neither gradients nor moments: `:embedding`, `:backbone`, `:heads`,
  or weights by their names and all that is below them, as in `["backbone", "heads.decode.buttons"]`. Weight decay leaves
  them alone too.

      Sconce.Trainer.start_link(corpus: "mine", out: "tuned", policy: "run/best.safetensors", freeze: [:backbone], steps: 500)

  ## Options

  `:corpus` and `:out` are required. Besides those below, every option of `Sconce.Policy.Spec` may
  stand here (`backbone: :gru, hidden_size: 64`) unless a `:spec` is given; embedding and heads are
  the corpus' own unless named.

  #{Catalogue.docs(:run)}

  Options may stand in their groups, as above, or by their names alone:

      Sconce.Trainer.start_link(corpus: "corpus", out: "run", data: [batch_size: 32], steps: 500)

  `:options` names a file with more of them: the `run.json` of another run, which says its corpus and its Spec too; JSON of
  options; or an `.exs` file that is a keyword list. What is said beside it counts. The device, the folder and
  `:resume` are never the file's.

  `:loss` is `:plain`, the negative log-likelihood of the recorded action and nothing else, or a
  keyword list, by default the whole stack that an app trains with:

  #{Catalogue.docs(:loss)}

  ## Optimisers and schedules

  g is the mean gradient of a step, cut to `:max_grad_norm` (the norm is that of all weights together,
  added in float64; Pascanu et al. 2013), m and v are moments, and a hat is the correction of their bias,
  `m / (1 - beta^t)`. Weight decay pulls at matrices alone: coupled, it is added to the gradient, as
  `g + decay p`; decoupled, it is `p -= lr decay p`.

  #{Optimiser.docs()}

  An option that the optimiser does not have raises. The learning rate rises evenly to `:learning_rate`
  over `:warmup_steps`; s steps later, of `:decay_steps` n, it is

  | `:lr_schedule` | of `:learning_rate` |
  |---|---|
  | `:constant` | 1 |
  | `:linear` | `1 - s / n`, then 0 |
  | `:cosine` | `(1 + cos(π s / n)) / 2`, then 0 (Loshchilov & Hutter 2017, equation 5) |
  | `:cosine_restarts` | such cosines one after another, of `:restart_period` steps and each `:restart_mult` times as long as the one before (SGDR, section 3) |
  | `:exponential` | `decay_rate^(s / n)` |

  A `:linear` or `:cosine` whose `:decay_steps` come to 0 before the run ends is refused by both numbers: the
  steps behind it would change nothing.

  With `:ema_decay` d each step t of the weights p goes into an average, `s = d s + (1 - d) p` from zero
  and corrected by `1 - d^t` (Kingma & Ba 2015, section 3), so that a short run is not held back by its
  first weights. Validations and `best.safetensors` are of the averaged weights; `last.safetensors` has
  both.

  `accumulation_steps: k` makes a step of k batches, whose gradients are added in place: those of one
  batch k times as large, up to the order of sums, in the memory of one. Frames count as they would
  there; what a loss takes from the whole of a batch (`:head_normalize`, and the entropy of frames of
  other weights) it takes from each. Everything counted in steps counts updates. A batch whose frames
  all weigh nothing (`neutral_weight: 0.0`) is passed over: only its state goes on.

  ## Precision

  With `precision: :bf16` or `:f16` both operands of every product of the forward and the backward pass are
  rounded to the nearest number of that format, ties to even (Micikevicius et al. 2018). Products and
  their sums are f32, and so is all else: the weights, in memory and on disk, the loss, norms, moments,
  averages and memories. In bf16 a number has 8 bits and the range of f32; in f16 it has 11, and lies
  between 6e-8 and 65504.

  On a CPU only bf16 gains anything, and only on a matrix unit (AMX, `amx_bf16` of
  `Sconce.native_info/0`), where it takes one product in the place of six. Layers that are too narrow for the
  unit gain nothing, and other products are those of f32 whose operands were rounded before, which is slower.
  A run that would gain nothing on its machine computes in f32, and says so: by the event `:precision`, in its
  report and in `run.json`. With `force_precision: true` it computes in what was asked for all the same.

  The CPU's features decide, not a measurement, and what a run computes in stays with it: to go on in
  another precision is refused. Where there is no matrix unit, a run of bf16 goes on with
  `force_precision: true`, slower and with other last bits.

  Small gradients would vanish from f16. There the loss is multiplied by a scale, and the gradient
  divided by it again before it is cut. The scale begins at 65536, is doubled after 2000 updates in a row, and
  halved where a gradient is not finite; such a step changes no weight, moment or average, and is told by the
  event `:overflow` (PyTorch's `GradScaler`, its numbers and rules). A gradient that is not finite at a scale of
  1 ends the run, as it does in f32, and so does a logit, which no scale can help. In bf16 there is no scale.

  Validations, the scores at the end, a teacher and whatever plays compute in f32: what is measured is what
  plays.

  ## Scheduled sampling

  In play a policy reads its own inputs, in training the recorded ones, which are better: it learns to copy
  what it will not be given. With `scheduled_sampling: p` each input of a window is with probability p
  replaced, for all frames that read it, by what the policy draws for the frame that the input answers
  (Bengio et al. 2015). All frames of a window are drawn in one pass without a gradient over the recorded
  inputs (parallel scheduled sampling, Mihaylova & Martins 2019), a pass more in each step; the app that
  Sconce is for replaces the inputs of the last frame alone, as its loss looks at no other. Labels stay the
  recorded ones, as do inputs from before the window, and forgotten ones stay forgotten. The pass computes in
  f32, as play does. A teacher reads what the policy reads. With `:scheduled_sampling_steps` n the probability of step t is `p min(t / n, 1)`.

  It is for policies of the Melee embedding with a controller; validations do not know of it. With
  `:frame_delay_max` it wants a `queue_depth` above 1: only there it is known which frame an input answers.

  ## A teacher

  `teacher: path` is the checkpoint of a policy that does not learn, and the loss of a step is

      imitation + teacher_weight * mean over frames of KL(policy || teacher)

  in nats: `p (log p - log q)`, added over heads, classes and bits, which are independent of each other
  given what is recorded; autoregressive heads, of either, condition on the recorded action. Frames count
  as they do in the imitation, and validations do not know of it. Forward, as slippi-ai has it and calls
  it, the policy may leave out what the teacher does; with `teacher_direction: :reverse`,
  KL(teacher || policy), it may not (Kullback & Leibler 1951).

  The teacher's backbone, embedding and kind of heads are its own. It sees the frames that the policy sees,
  mirrored and forgotten alike, without its dropout; noise on an embedding that is not the policy's is its
  own. With `unroll: :carry` it has a state of its own in each track, which is saved with the run's. A
  teacher of another game, action space or frame delay is an error of kind `:mismatch`; one whose file does
  not say its delay is taken to have the run's. A resumed run knows its teacher by the file's digest,
  wherever it lies.

  ## Advantages

  A corpus of a declared game with rewards (the column `reward`) holds more than what was done: how it went. With
  `advantage_temperature: t` a frame counts in the loss by its advantage A (Peng et al. 2019):

      mean over frames of min(exp(A / t), advantage_max_weight) * imitation
        + value_weight * (value - R)^2 / 2,    A = R - value

  R is the discounted return of the input that answers the frame (`:discount`), up to the end of its game; of a game that
  was cut off what would have come is not known, and counts as nothing. The value is that of the policy's own
  `value_head: true`, whose estimate is the last of the logits. The weights have no gradient, and nothing is divided by
  their sum. A small temperature imitates what went best, a large one everything. Events and history have the figures
  `value_loss`, half the mean squared error of the value, and `advantage_weight`, the mean of the weights.

  A corpus without rewards, heads without a value, and a value that nothing trains are errors that name them.

  ## Closeness to the prior

  Of few games a policy learns by heart when a button is let go, and is as sure of it in games that go on otherwise.
  `prior_weight: w` adds `w` times the mean over frames of KL(prior || policy) to the loss, where the prior is the table
  P(a_t given a_{t-1}) of the training games, as it was counted: up to a constant this is the NLL of labels of which the
  prior has the share `w / (1 + w)`. Heads need no `prior: true` for it, and validations do not know of it. The
  report's `figures` have the divergence as `prior_kl`. `bench/learning/left_out.txt` has what 0.25 does to games that
  were left out.

  ## Long unrolls

  With `unroll: :window` a step learns from windows of any games, each from a zero state: what lies
  further back than a window cannot be learned. With `unroll: :carry` each of the `:batch_size` rows is
  a track that walks through a game, one window a step, and hands its state on to its next step; then it
  takes the next game of a shuffled order, from a zero state. No frame is computed twice in an epoch,
  and the last window of a game may be a partial one. Gradients end at a window's beginning (truncated
  backpropagation through time, Williams & Peng 1990). To begin with, the tracks are spread over their
  games. Such a policy plays, and should be validated, in the mode `:carry`. `:stride` has no meaning
  there, and an epoch is as many windows as all games have.

  Of memory a step needs what its backward pass reads again, which grows with `:window_size`:

    * `truncate_bptt: k` works a window through in chunks of k frames, the state handed on and its
      gradient cut; the loss is that of the whole window. With k as long as the window, or longer,
      nothing changes.
    * `gradient_checkpoint: true` keeps of each `:checkpoint_every` blocks only what they read, and
      computes them again in the backward pass (Chen et al. 2016). Not a bit of the result changes; with
      six layers the peak came down to between two fifths and a half, for a quarter to three quarters
      more CPU time. `cargo run --release --example unroll` measures it. On a card it is an error of kind
      `:unavailable`: a smaller micro-batch does it there.

  ## Memory

  `plan/2` tells what a run will take, `tune/2` finds the batch size. With a `:memory_limit` the run is
  planned when it begins: where a step of a whole batch would take more, the batch is worked through in
  halves, quarters and so on, and their gradients added. A step that was measured to take more, or
  whose device has no memory left, is made again with half as many windows at a time. The event
  `:out_of_memory` tells it, and the report's `micro_batch`. The update is that of the whole batch up to
  the order of sums; a resumed run keeps to the smaller parts, and so to its bits. Where not even one
  window fits, the run ends with an error of kind `:out_of_memory`.

  Without a `:memory_limit` nothing is cut, so that free memory never changes what is computed. A run on a CPU that
  needs more than is available is refused when it begins, by an error of kind `:out_of_memory` that says what
  it needs, what is available, and which of three bounds that is: the free memory of the machine (MemAvailable), what
  the cgroup has left, or the limit of address space (`ulimit -v`) less what is in use. A sixteenth of it stays for
  the rest of the VM. A buffer that the system refuses later ends the run with the same kind of error, and its
  last whole step is saved. What is measured is what the
  run's own thread takes: the VM, other runs and the corpus, which is mapped, are not in it. On a card there is no
  `:memory_limit`, as nothing tells what of it is a run's alone: `memory_budget` limits all that the VM has there,
  see `Sconce.GPU.Ledger`.

  ## Several cards

  With `device: {:cuda, [0, 1]}` a run has several cards of one machine, which share each batch (data
  parallelism): each has weights and moments of its own and learns from as many windows of the batch, which is
  the batch that one card would have. Gradients are weighed by the frames of the whole batch and added by
  NVIDIA's NCCL; then every card makes the same update. Dropout and all else that is drawn belongs to a
  window's place in the batch, so that losses and weights are those of one card up to the order of sums.

  `:batch_size` has to be a multiple of the cards; an error of kind `:mismatch` says if it is not. Without
  `libnccl.so.2` there are no several cards, which is an error of kind `:unavailable`. The first card is the one
  that validates and saves, and a run goes on (`resume: true`) on any other number of them. Validations see to it
  that weights are still the same on all, to the bit. What fails on one card ends the run on all, with the last
  whole step saved; one whose memory is too small halves the windows of all. `plan/2`, `tune/2` and
  `find_learning_rate/2` have one device.

  ## Events

  A map for each thing that happens, to every `subscribe/1`r as `{:sconce_trainer, run, event}`, to the
  function given as `:progress`, and to `:telemetry` where the host has it. `Sconce.Events` says what is
  in them. A late subscriber is told how the run began (`:resumed` where it went on, `:start`, and
  `:precision` where that is not what was asked for) and, of one that is over, `:done`.

  A run never waits for its subscribers. Where its process falls behind, as with a `:progress` function that takes
  longer than a step, it hears of 1,024 steps and then of the latest one alone; every other event comes, up to 4,096
  at a time. A subscriber gets what the process hears and is expected to read it.

  ## The report

  A map: `stopped` (`:finished`, `:early`, `:budget` or `:stopped`), `steps`, `best_step`, `seconds`,
  `weights`, `micro_batch` (windows of a batch that were worked through together), `precision` (what was
  computed in), `skipped_updates` (steps whose gradient overflowed f16), `spec`, `options`,
  `train` and `validation` (`games`, `frames`), `history` (`step`; mean
  `loss` since the point before, the `losses` of the heads and the `figures` of the objectives,
  `frames_per_second` and `data_wait`, the share of the time, of the same
  steps; `learning_rate`; `nll` and that of the `heads` where a validation was made; `seconds`),
  `policy` (the scores of the best policy, nil where none were made), `baselines` (`name`, `report`),
  `loader` (what went through it and who waited for whom, see `Sconce.Loader`),
  `saves` (states `written`, the `step` of the last one, `seconds` that it took beside the run and
  `wait_seconds` that the run waited for it, `failed`: `path`, `reason`, `step`, `times`), `out` and `curve`
  (paths). `report/1` reads it back from the folder of a run.

  A loss or a gradient that is not finite ends a run with an error of kind `:non_finite` whose `details`
  are `what` (the head whose logit or loss it was, or the weight whose gradient), `value`, `step`, `batch`
  and `windows` (`game` and first `frame` of those that the step learned from, at most 4,096).
  """

  use Sconce.Server, restart: :temporary, shutdown: 30_000

  require Logger

  alias Sconce.{Device, Error, Events, Memory, Native, Options, Policy, Preset, Text}
  alias Sconce.Native.Call
  alias Sconce.Policy.{Spec, Widths}
  alias Sconce.Trainer.{Callback, Curve, Gradients, Keeper, Plan, RangeTest, Report, Tuning}

  # How long a dying process waits for the native thread to save its state.
  @farewell_ms 20_000
  # How long it may be busy with its progress function when it is asked for something.
  @call_ms 5_000

  @stopped ~w(finished early budget stopped)a
  @names Map.new(Events.names() ++ @stopped, &{to_string(&1), &1})

  @type run :: GenServer.server()
  @type report :: map

  @doc """
  Starts a run. Options that no run could have raise `ArgumentError` here; whatever else is wrong (a
  corpus that is not there, a Spec that does not fit it) is what `await/2` returns.

  The process keeps the outcome until it is stopped. It is linked to its caller, with whom it ends. Where
  the application `:sconce` is started, as it is in an app and under `mix`, a VM that is told to stop (by
  SIGTERM, `System.stop/0`) waits until the run has saved its state. Signals are the app's: a run traps none.
  SIGHUP and SIGQUIT end a VM at once unless the app turns them into `System.stop/0`, as `mix sconce.train` does.
  """
  @spec start_link(keyword) :: GenServer.on_start()
  def start_link(opts) do
    {name, opts} = opts |> Options.keyword!() |> Keyword.split([:name])
    if name[:name], do: Options.name!(name[:name])
    settings = Settings.new!(opts)
    # Without the native side, what `await/2` returns says so.
    _ = Call.give_way()
    GenServer.start_link(__MODULE__, settings, name)
  end

  @doc """
  Waits for the outcome of a run, which may be asked for any number of times.

  Of kind `:deadline` if it is not there after `timeout` milliseconds (the run goes on), of kind
  `:cancelled` if the process is gone.
  """
  @spec await(run, timeout) :: {:ok, report} | {:error, Error.t()}
  def await(run, timeout \\ :infinity) do
    id = make_ref()
    answer = call(run, {:await, id}, Options.timeout!(timeout))

    # The run would keep the request until it ends, and a caller may ask every few milliseconds.
    with {:error, %Error{kind: :deadline}} <- answer, do: GenServer.cast(run, {:given_up, id})
    answer
  end

  @doc """
  Sends the events of a run to the caller, as `{:sconce_trainer, pid, event}`.

  Of kind `:cancelled` if the process is gone, as `stop/1` and `info/1` are.
  """
  @spec subscribe(run) :: :ok | {:error, Error.t()}
  def subscribe(run), do: call(run, {:subscribe, self()})

  @doc """
  Ends a run: it saves `last.safetensors`, leaves out the final evaluation and answers `await/2` with a report
  whose `stopped` is `:stopped`. A run that is over stays as it is.

  A step that is under way is given up before its next part (a batch of `:accumulation_steps`, a micro-batch, a
  chunk of `:truncate_bptt`) and changes nothing: what is saved is the state after the last whole step. A run
  that is stopped before it has read its games once has learned nothing, and ends with an error of kind `:cancelled`.
  """
  @spec stop(run) :: :ok | {:error, Error.t()}
  def stop(run), do: call(run, :stop)

  @doc "Where a run is: `status` (`:running`, `:done` or `:failed`), `out`, and the last `step` and `validation`."
  @spec info(run) :: map | {:error, Error.t()}
  def info(run), do: call(run, :info)

  defp call(run, request, timeout \\ @call_ms) do
    Options.server?(run) || Options.argument!("run", run, "the pid or the name of a run")
    GenServer.call(run, request, timeout)
  catch
    :exit, {:timeout, _call} ->
      details = %{what: "the answer of the run", deadline_ms: timeout}
      {:error, %Error{kind: :deadline, op: :train, details: details}}

    :exit, _gone ->
      {:error, %Error{kind: :cancelled, op: :train}}
  end

  @doc """
  Scores a checkpoint on every game of a corpus, beside baselines fitted on the games of `:train`.

  Returns `{:ok, report}` with `policy`, `baselines`, `spec`, `weights`, `options`, `precision`, `validation`, `device`.

  #{Catalogue.docs(:evaluate)}
  """
  @spec evaluate(Path.t(), Path.t() | Sconce.Corpus.t(), keyword) ::
          {:ok, report} | {:error, Error.t()}
  def evaluate(checkpoint, corpus, opts \\ []) do
    {train, device, progress, options} = Settings.evaluate!(opts)
    checkpoint = checkpoint |> Options.path!() |> Path.expand()
    corpus = Settings.folder(corpus)
    tell = fn event -> progress && progress.(named(event)) end

    with {:ok, device} <- Device.resolve(device),
         options = Map.put(options, :device, to_string(device)),
         start = &Native.evaluate_start(&1, checkpoint, corpus, train, options),
         {:ok, report} <- Call.in_background(start, tell),
         do: {:ok, report |> with_spec() |> Map.put(:device, to_string(device))}
  end

  @doc """
  The report of a run that is over, from its folder.

  Of kind `:not_found` where the folder has no `report.json`, because it is no run's or the run is not
  over, and of kind `:corrupt` where that is no report.
  """
  @spec report(Path.t()) :: {:ok, report} | {:error, Error.t()}
  def report(out) do
    out = out |> Options.path!() |> Path.expand()
    with {:ok, report} <- Native.train_report(out), do: {:ok, whole(report, out)}
  end

  @doc """
  What a run with `:gradient_report` saw of its gradients, from its folder, while it goes on or after it.

  A list of `%{step: step, weights: weights}`, a line of `gradients.jsonl` each. Of each weight there are
  its `name`; the `numbers` it has; `norm`, `mean_abs` and `max_abs` of its gradient (the mean of the
  step's batches, before it is cut to `:max_grad_norm`), the share of `zeros` in it, and a `histogram` of
  its other absolute numbers by their power of ten: sixteen counts, from those below 1e-11 to those from
  1e3 on; its `weight_norm` before the update, and the norm of its change over that, `update_ratio`, nil
  of a weight that was 0.

  Of kind `:not_found` where a run has not looked.
  """
  @spec gradients(Path.t()) :: {:ok, [map]} | {:error, Error.t()}
  def gradients(out), do: out |> Options.path!() |> Path.expand() |> Native.train_gradients()

  @doc """
  What a run will take of memory and of time, before it takes it: a `Sconce.Trainer.Plan`.

  The options are those of `start_link/1`; neither `:corpus` nor `:out` is needed, and nothing is
  written. Steps of a few windows are made, which took 0.4 to 3 s with networks of up to ten million
  weights. `:memory_limit` shows how many windows of a batch a run would work through together.

      {:ok, plan} = Sconce.Trainer.plan(spec, batch_size: 256, corpus: "corpus")
      IO.puts(plan)

  Kinds of error: `:out_of_memory` where not even one window at a time keeps within `:memory_limit`,
  and those of the corpus.
  """
  @spec plan(Spec.t() | nil, keyword) :: {:ok, Plan.t()} | {:error, Error.t()}
  def plan(spec \\ nil, opts) do
    {source, options, _none} = Settings.measured!(spec, opts, :plan)

    with {:ok, {corpus, spec}} <- source,
         native = Spec.to_native(spec),
         {:ok, plan} <- Call.in_background(&Native.plan_start(&1, native, corpus, options)),
         do: {:ok, Plan.new(plan, spec)}
  end

  @doc """
  The batch size that goes through most frames a second: a `Sconce.Trainer.Tuning`, whose `batch_size`
  it is.

  Real steps are measured, of batches that double until one brings no more (3 %) or would take more
  than `:backoff` of `:memory_limit`, by default of the memory that is free. All options of
  `start_link/1` may stand beside these:

  #{Catalogue.docs(:tune)}

  Of kind `:out_of_memory` where one window takes too much.
  """
  @spec tune(Spec.t() | nil, keyword) :: {:ok, Tuning.t()} | {:error, Error.t()}
  def tune(spec \\ nil, opts) do
    {source, options, own} = Settings.measured!(spec, opts, :tune)
    options = Map.update!(options, :memory_limit, &(&1 || Memory.free()))

    with {:ok, {_corpus, spec}} <- source,
         native = Spec.to_native(spec),
         {:ok, tuning} <- Call.in_background(&Native.tune_start(&1, native, options, own)),
         do: {:ok, Tuning.new(tuning, spec)}
  end

  @doc """
  A learning rate by a range test: a `Sconce.Trainer.RangeTest` with the loss of some steps whose rate
  grows by the same factor each time, and the rates that it suggests.

  A Spec is trained from new weights, of a `Sconce.Policy` a copy is trained; the policy, `:out` and
  all files stay as they are. `:corpus` is required; of the options of `start_link/1`, which may stand
  beside these, the schedule has no meaning. One seed gives the same curve to the last bit.

  #{Catalogue.docs(:range)}
  """
  @spec find_learning_rate(Spec.t() | Policy.t() | nil, keyword) ::
          {:ok, RangeTest.t()} | {:error, Error.t()}
  def find_learning_rate(given \\ nil, opts)

  def find_learning_rate(%Policy{ref: ref} = policy, opts) do
    with {:ok, %{spec: spec}} <- Policy.info(policy), do: range_test(spec, ref, opts)
  end

  def find_learning_rate(spec, opts), do: range_test(spec, nil, opts)

  defp range_test(spec, policy, opts) do
    Options.keyword!(opts)[:corpus] ||
      raise ArgumentError, "option :corpus is required: a Sconce.Corpus or a path"

    {source, options, own} = Settings.measured!(spec, opts, :range)

    with {:ok, {corpus, spec}} <- source,
         native = Spec.to_native(spec),
         start = &Native.range_test_start(&1, native, policy, corpus, options, own),
         {:ok, test} <- Call.in_background(start),
         do: {:ok, RangeTest.new(test, spec)}
  end

  @impl true
  def init(settings) do
    # So that `terminate/2` runs when the caller ends.
    Process.flag(:trap_exit, true)
    Keeper.keep(self())
    tell_ignored(settings.preset)

    state = %{
      settings: settings,
      ref: make_ref(),
      telemetry?: Events.telemetry?(),
      task: nil,
      seen: %{},
      subscribers: %{},
      waiting: %{},
      asked: nil,
      result: nil
    }

    {:ok, state, {:continue, :start}}
  end

  @impl true
  def handle_continue(:start, %{settings: settings, ref: ref} = state) do
    %{out: out, options: options} = settings

    with {:ok, {corpus, spec}} <- settings.source,
         :ok <- Widths.warn(spec),
         native = Spec.to_native(spec),
         asks = settings.callback != nil,
         {:ok, task} <- Native.train_start(ref, native, corpus, out, options, asks) do
      {:noreply, %{state | task: task}}
    else
      {:error, error} -> {:noreply, finish(state, {:error, error})}
    end
  end

  @impl true
  def handle_call({:await, id}, {pid, _tag} = from, %{result: nil} = state) do
    waiting = Map.put(state.waiting, id, {from, Process.monitor(pid)})
    {:noreply, %{state | waiting: waiting}}
  end

  def handle_call({:await, _id}, _from, state), do: {:reply, state.result, state}
  def handle_call(:info, _from, state), do: {:reply, summary(state), state}

  def handle_call(:stop, _from, state) do
    if state.result == nil, do: Native.train_stop(state.task)
    {:reply, :ok, state}
  end

  def handle_call({:subscribe, pid}, _from, state) when is_pid(pid) do
    for name <- [:resumed, :start, :precision], told = state.seen[name], do: tell(pid, told)
    if state.result, do: tell(pid, %{event: :done, result: state.result})
    monitor = state.subscribers[pid] || Process.monitor(pid)
    {:reply, :ok, put_in(state.subscribers[pid], monitor)}
  end

  @impl true
  def handle_cast({:given_up, id}, state) do
    {given_up, waiting} = Map.pop(state.waiting, id)
    with {_from, monitor} <- given_up, do: Process.demonitor(monitor, [:flush])
    {:noreply, %{state | waiting: waiting}}
  end

  @impl true
  def handle_info({:sconce, ref, {:event, %{event: "asking"} = asked}}, %{ref: ref} = state) do
    if state.task, do: Call.heard(state.task)
    {:noreply, ask(state, asked.number)}
  end

  def handle_info({:sconce, ref, {:event, event}}, %{ref: ref} = state) do
    event = named(event)

    state =
      if event.event == :callback_late,
        do: %{state | asked: Callback.drop(state.asked)},
        else: state

    state = publish(put_in(state.seen[event.event], event), event)
    if state.task, do: Call.heard(state.task)
    {:noreply, state}
  end

  def handle_info({:sconce, ref, answer}, %{ref: ref} = state),
    do: {:noreply, finish(state, reported(answer, state))}

  def handle_info({:verdict, number, verdict}, state),
    do: {:noreply, answer(state, number, verdict)}

  def handle_info({:DOWN, monitor, :process, _, reason}, %{asked: {_, monitor, number}} = state) do
    state = if reason == :normal, do: state, else: give_up(state, number, reason)
    {:noreply, %{state | asked: nil}}
  end

  def handle_info({:DOWN, monitor, :process, pid, _reason}, state) do
    waiting =
      for {id, {_from, of} = one} <- state.waiting, of != monitor, into: %{}, do: {id, one}

    {:noreply, %{state | waiting: waiting, subscribers: Map.delete(state.subscribers, pid)}}
  end

  @impl true
  def terminate(_reason, %{result: nil, task: task, ref: ref}) when task != nil do
    Native.train_stop(task)

    receive do
      {:sconce, ^ref, {kind, _answer}} when kind in [:ok, :error] -> :ok
    after
      @farewell_ms -> :ok
    end
  end

  def terminate(_reason, _state), do: :ok

  # What a crash report and `:sys.get_status/1` show. `GenServer` has this callback in later versions of Elixir alone.
  if {:format_status, 1} in GenServer.behaviour_info(:callbacks), do: @impl(true)
  @doc false
  def format_status(status), do: Map.replace_lazy(status, :state, &shown/1)

  defp shown(state),
    do:
      state |> summary() |> Map.take([:status, :out]) |> Map.put(:step, state.seen[:step][:step])

  defp tell_ignored(nil), do: :ok

  defp tell_ignored(%{name: name, ignored: ignored}) do
    for row <- ignored, do: Logger.info("preset #{name}, no effect: #{Preset.Text.ignored(row)}")
  end

  defp finish(state, result) do
    result = with {:error, error} <- result, do: {:error, Device.elsewhere(error)}

    for {_id, {from, monitor}} <- state.waiting do
      Process.demonitor(monitor, [:flush])
      GenServer.reply(from, result)
    end

    state = publish(%{state | asked: Callback.drop(state.asked)}, %{event: :done, result: result})
    # Without the task's handle nothing native is held any more.
    %{state | result: result, waiting: %{}, task: nil}
  end

  defp reported({:ok, report}, state), do: {:ok, complete(report, state)}

  # A run of which no state was saved still has its report.
  defp reported({:error, %Error{details: %{report: report}} = error}, state),
    do: {:error, put_in(error.details.report, complete(report, state))}

  defp reported(error, _state), do: error

  # A picture that cannot be written is no reason to lose the report.
  defp complete(report, %{settings: %{out: out}}) do
    report = %{whole(report, out) | curve: nil}
    title = Report.title(report.spec, report.weights)
    if report.options.gradient_report, do: draw_gradients(out, title)
    drawn? = drawn?(Curve.write(report, curve(out), title: title))
    %{report | curve: if(drawn?, do: curve(out))}
  end

  # A run may be shorter than the steps between two looks.
  defp draw_gradients(out, title) do
    with {:ok, [_ | _] = reports} <- gradients(out),
         do: drawn?(Gradients.write(reports, Path.join(out, "gradients.svg"), title: title))
  end

  defp drawn?(:ok), do: true

  defp drawn?({:error, error}) do
    Logger.warning(Exception.message(error))
    false
  end

  defp whole(report, out) do
    stopped = Map.fetch!(@names, report.stopped)
    curve = if File.exists?(curve(out)), do: curve(out)
    report = Map.update!(with_spec(report), :options, &Table.by_name/1)
    Map.merge(report, %{stopped: stopped, out: out, curve: curve})
  end

  defp curve(out), do: Path.join(out, "curve.svg")

  defp with_spec(report), do: Map.update!(report, :spec, &Spec.from_native/1)

  defp publish(state, event) do
    for {pid, _monitor} <- state.subscribers, do: tell(pid, event)
    if state.telemetry?, do: Events.execute(event, %{run: self(), out: state.settings.out})
    show(state, state.settings.progress, event)
  end

  defp tell(pid, event), do: send(pid, {:sconce_trainer, self(), event})

  defp show(state, nil, _event), do: state

  # Hours of training do not end with a display that does.
  defp show(state, progress, event) do
    progress.(event)
    state
  catch
    kind, reason ->
      what = Exception.format_banner(kind, reason, __STACKTRACE__)
      Logger.warning("progress function given up: #{Text.lines(what)}")
      put_in(state.settings.progress, nil)
  end

  # One that was given up has nothing to say.
  defp ask(%{settings: %{callback: nil}} = state, number), do: answer(state, number, %{})

  defp ask(state, number),
    do: %{state | asked: Callback.ask(state.settings.callback, number, state.seen)}

  defp answer(%{task: nil} = state, _number, _verdict), do: state

  defp answer(state, number, verdict) do
    Native.train_answer(state.task, number, verdict)
    state
  end

  # Hours of training do not end with what watches them either.
  defp give_up(state, number, reason) do
    Logger.warning("callback given up: #{Text.lines(Exception.format_exit(reason))}")
    put_in(answer(state, number, %{}).settings.callback, nil)
  end

  defp summary(%{result: result, settings: settings, seen: seen}) do
    status =
      case result do
        nil -> :running
        {:ok, _report} -> :done
        {:error, _error} -> :failed
      end

    %{status: status, out: settings.out, step: seen[:step], validation: seen[:validation]}
  end

  defp named(event), do: Map.update!(event, :event, &Map.fetch!(@names, &1))
end
