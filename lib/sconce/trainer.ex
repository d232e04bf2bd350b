defmodule Sconce.Trainer do
  alias Sconce.Trainer.{Catalogue, Optimiser, Settings, Table}

  @moduledoc """
  Trains a policy on the games of a `Sconce.Corpus`, from a Spec to a checkpoint and a report.

      {:ok, run} = Sconce.Trainer.start_link(corpus: "corpus", out: "run", backbone: :gru)
      {:ok, report} = Sconce.Trainer.await(run)
      IO.puts(Sconce.Trainer.Report.format(report))

  A native thread does the work. The process `run` starts the thread, forwards its events and keeps its result. The
  split into training and validation is by game. Two runs of one seed give the same weights to the last bit,
  regardless of the number of threads.

  | to | call |
  |---|---|
  | start or resume a run | `start_link/1` |
  | follow it in a terminal | `Sconce.Trainer.Progress.follow/2` |
  | receive its events | `subscribe/1`, see `Sconce.Events` |
  | read its latest step and validation | `info/1` |
  | wait for its report | `await/2` |
  | stop it with its state saved | `stop/1` |
  | read its report from its folder | `report/1`, `gradients/1` |
  | score a checkpoint | `evaluate/3` |
  | measure memory and time before a run | `plan/2`, `tune/2` |
  | find a learning rate before a run | `find_learning_rate/2` |

  `guides/training.livemd` is the guide: it explains the options with examples that run.

  ## Files

  The folder `:out` belongs to one run. `Sconce.Trainer` replaces each file as a whole, so that a run that is killed
  at any moment leaves no partial file.

  | file | content |
  |---|---|
  | `best.safetensors` | policy of the best validation |
  | `last.safetensors` | latest state, with everything that a resumed run needs |
  | `run.json` | corpus, Spec and options |
  | `report.json`, `curve.svg` | report and learning curve, at the end |
  | `gradients.jsonl`, `gradients.svg` | with `:gradient_report`, see `gradients/1` |

  ## Resume

      {:ok, run} = Sconce.Trainer.start_link(resume: true, out: "run")

  continues the run in `run` from its last saved state, and reaches the weights of an uninterrupted run to the last
  bit. Corpus, Spec and options are those of `run.json`; a given option overrides the recorded one. These
  options may change: `:corpus` (the folder of the same games), `:progress`, `:callback`,
  #{Table.free() |> Enum.chunk_every(8) |> Enum.map_join(",\n", fn names -> Enum.map_join(names, ", ", &"`#{inspect(&1)}`") end)}.
  Any other difference is an error of kind `:mismatch` whose `details` list all `differences` (`option`, `recorded`,
  `given`). A folder without a run is an error of kind `:not_found`.

  ## Options

  `:corpus` and `:out` are required. Every option of `Sconce.Policy.Spec` is accepted too (`backbone: :gru,
  hidden_size: 64`), unless a `:spec` is given. Embedding and heads default to those of the corpus.

  #{Catalogue.docs(:run)}

  Options are given by name, or in the groups above: `data: [batch_size: 32], steps: 500`.

  `:options` names a file of options: the `run.json` of another run, including its corpus and its Spec; other JSON of
  options; or an `.exs` file with a keyword list. Given options override the file. `:device`, `:out` and `:resume` are
  never read from it.

  `:loss` is `:plain`, the negative log-likelihood of the recorded action, or a keyword list:

  #{Catalogue.docs(:loss)}

  ## Optimisers

  g is the mean gradient of a step after clipping to `:max_grad_norm`; m and v are moments; a hat marks a moment with
  its bias corrected, `m / (1 - beta^t)`. Weight decay applies only to matrices. Coupled decay is added to the gradient,
  `g + decay p`; decoupled decay is `p -= lr decay p`. An option that the optimiser does not have raises.

  #{Optimiser.docs()}
  """

  require Logger

  alias Sconce.{Device, Error, Events, Memory, Native, Options, Policy, Preset, Run}
  alias Sconce.Run.Tuned
  alias Sconce.Native.Call
  alias Sconce.Policy.{Spec, Widths}
  alias Sconce.Trainer.{Curve, Gradients, Plan, RangeTest, Report, Tuning}

  @stopped ~w(finished early budget stopped)a
  @names Map.new(Events.names() ++ @stopped, &{to_string(&1), &1})

  @typedoc "The pid or the name of a run."
  @type run :: GenServer.server()

  @typedoc """
  The report of a run.

  | key | content |
  |---|---|
  | `stopped` | `:finished`, `:early` (validation stopped improving), `:budget` (`:max_minutes`) or `:stopped` |
  | `steps`, `best_step`, `seconds` | number of steps, step of the best policy, duration |
  | `spec`, `options`, `weights` | Spec, options, number of weights |
  | `micro_batch` | windows of a batch that were computed together |
  | `precision`, `skipped_updates` | precision of the run, steps whose gradient overflowed f16 |
  | `train`, `validation` | `games` and `frames` of both sides |
  | `history` | a list of points, see below |
  | `policy` | scores of the best policy, nil without an evaluation |
  | `baselines` | `name` and `report` of each baseline |
  | `loader` | flow of the loader, see `Sconce.Loader` |
  | `saves` | `written` states, the `step` of the last, `seconds` of writing, `wait_seconds` of the run for it, `failed` files (`path`, `reason`, `step`, `times`) |
  | `out`, `curve` | paths of the folder and of the curve |

  A point has its `step`, the `seconds` so far and the `learning_rate`; means since the previous point: `loss`, the
  `losses` of the heads, the `figures` of the objectives, `frames_per_second`, and `data_wait`, the share of the time
  spent waiting for data; after a validation also the total `nll` and the NLL of each of the `heads`.
  """
  @type report :: map

  @doc """
  Starts a run.

  An invalid option raises `ArgumentError` here. Any other error (a missing corpus, a Spec that
  does not fit the corpus) is returned by `await/2`.

  The process keeps the result until it is stopped. It is linked to the caller and ends with the caller. While the
  application `:sconce` is started, as it is in an app and under `mix`, a VM that stops (on SIGTERM, by `System.stop/0`)
  waits until the run has saved its state. A run traps no signals. SIGHUP and SIGQUIT end a VM at once unless the app
  turns them into `System.stop/0`, as `mix sconce.train` does.

      iex> dir = Path.join(System.tmp_dir!(), "sconce-trainer-" <> System.pid())
      iex> {:ok, games} = Sconce.Env.CartPole.demonstrations(games: 8, steps: 60)
      iex> {:ok, corpus} = Sconce.Env.CartPole.corpus(games, into: Path.join(dir, "corpus"))
      iex> small = [backbone: :mlp, hidden_sizes: [8], batch_size: 8, window_size: 8, stride: 8, gradient_report: 2]
      iex> out = Path.join(dir, "run")
      iex> {:ok, run} = Sconce.Trainer.start_link([corpus: corpus, out: out, steps: 4] ++ small)
      iex> Sconce.Trainer.subscribe(run)
      :ok
      iex> {:ok, report} = Sconce.Trainer.await(run)
      iex> {report.stopped, report.steps, report.train.games}
      {:finished, 4, 7}
      iex> receive do {:sconce_trainer, ^run, %{event: :done, result: result}} -> result == {:ok, report} end
      true
      iex> Sconce.Trainer.info(run).status
      :done
      iex> Sconce.Trainer.report(out) == {:ok, report}
      true
      iex> {:ok, looks} = Sconce.Trainer.gradients(out)
      iex> for look <- looks, do: look.step
      [2, 4]
      iex> {:ok, scores} = Sconce.Trainer.evaluate(Path.join(out, "best.safetensors"), corpus)
      iex> scores.policy.frames
      480
      iex> {:ok, longer} = Sconce.Trainer.start_link(resume: true, out: out, steps: 6, decay_steps: 4)
      iex> Sconce.Trainer.stop(longer)
      :ok
      iex> for process <- [run, longer], do: GenServer.stop(process)
      [:ok, :ok]
      iex> File.rm_rf!(dir) != []
      true
  """
  @spec start_link(keyword) :: GenServer.on_start()
  def start_link(opts) do
    {name, opts} = opts |> Options.keyword!() |> Keyword.split([:name])
    if name[:name], do: Options.name!(name[:name])
    settings = Settings.new!(opts)
    Run.start_link(of(settings, opts), name)
  end

  @doc false
  def child_spec(opts), do: Run.child_spec(__MODULE__, opts)

  defp of(settings, opts) do
    %Run{
      settings: settings,
      kind: "imitation",
      tag: :sconce_trainer,
      start: &native(&1, settings),
      named: &named/1,
      complete: &complete(&1, settings),
      early: [:resumed, :start, :precision, :pressure],
      shown: [:step, :validation],
      telemetry?: true,
      begin: fn -> tell_ignored(settings.preset) end,
      pressure: settings.pressure,
      again: &again(opts, &1, &2)
    }
  end

  defp again(opts, saved?, device) do
    settings = opts |> Settings.again(saved?, device) |> Settings.new!()
    &native(&1, settings)
  end

  defp native(ref, %{out: out, options: options} = settings) do
    with {:ok, {corpus, spec}} <- settings.source,
         :ok <- Widths.warn(spec) do
      asks = settings.callback != nil
      Native.train_start(ref, Spec.to_native(spec), corpus, out, options, asks)
    end
  end

  defp tell_ignored(nil), do: :ok

  defp tell_ignored(%{name: name, ignored: ignored}) do
    name = Preset.Text.name(name)
    for row <- ignored, do: Logger.info("preset #{name}, no effect: #{Preset.Text.ignored(row)}")
  end

  @doc """
  Waits for the result of a run. Any number of processes may wait. `start_link/1` has an example.

  After a failure of memory, of a deadline or of a device a run goes on from its last saved state, as often as `:pressure`
  allows; the result is that of the last attempt.

  | kind of error | cause |
  |---|---|
  | `:deadline` | no result after `timeout` milliseconds; the run continues. Or a batch of the loader was late, in each attempt |
  | `:cancelled` | the process is gone, or the run was stopped before its first step |
  | `:non_finite` | a loss, logit or gradient is not finite; `details` have `what` (the head or the weight), `value`, `step`, `batch` and `windows` (`game` and first `frame` of at most 4,096 windows of the step) |
  | `:io` | no state could be saved; `details` have `path`, `reason` and the `report` |
  | `:out_of_memory` | the run does not fit into the memory, even with one window at a time |
  | `:mismatch`, `:not_found`, `:corrupt` | corpus, Spec, folder and options do not fit each other |
  """
  @spec await(run, timeout) :: {:ok, report} | {:error, Error.t()}
  def await(run, timeout \\ :infinity), do: Run.await(run, timeout, :train)

  @doc """
  Sends the events of a run to the caller, as `{:sconce_trainer, pid, event}`; `start_link/1` has an example.

  `Sconce.Events` lists them. A late subscriber first receives the events of the start (`:resumed`, `:start`,
  `:precision`, the latest `:pressure`), and `:done` if the run is over. A run never waits for its subscribers. If its process falls behind,
  as with a `:progress` function that is slower than a step, the run drops `:step` events after 1,024 of them,
  except the latest, and keeps up to 4,096 other events.

  The error is of kind `:cancelled` if the process is gone; the same holds for `stop/1` and `info/1`.
  """
  @spec subscribe(run) :: :ok | {:error, Error.t()}
  def subscribe(run), do: Run.subscribe(run, :train)

  @doc """
  Stops a run: it saves `last.safetensors`, skips the final evaluation and returns a report whose `stopped` is
  `:stopped` from `await/2`. On a run that is over this is a no-op. `start_link/1` has an example.

  A step in flight is aborted before its next unit (a batch of `:accumulation_steps`, a micro-batch, a chunk of
  `:truncate_bptt`) and has no effect: the saved state is that of the last complete step. A run that is stopped while
  it still reads its games for the first time has learned nothing, and ends with an error of kind `:cancelled`.
  """
  @spec stop(run) :: :ok | {:error, Error.t()}
  def stop(run), do: Run.stop(run, :train)

  @doc """
  Returns the `status` of a run (`:running`, `:done` or `:failed`), its folder `out`, and its latest `step` and
  `validation` events, each nil before its first event. `start_link/1` has an example.
  """
  @spec info(run) :: map | {:error, Error.t()}
  def info(run), do: Run.info(run, :train)

  @doc """
  Scores a checkpoint, and baselines fitted on the games of `:train`, on every game of a corpus.

  Returns a report with `policy`, `baselines`, `spec`, `weights`, `options`, `precision`, `validation`, `device` and
  `differs`. `start_link/1` has an example.

  With `:reference`, `differs` is the share of scored frames whose likeliest action differs in any head from that of the
  other policy on the same frame; else it is nil. Autoregressive heads of both condition on the recorded action. A bounded
  number differs if it moves by more than 1/32 of its range.

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
  Reads the report of a run that is over from its folder; `start_link/1` has an example.

  The error is of kind `:not_found` if the folder has no `report.json`, because it is not the folder of a run or the
  run is not over, and of kind `:corrupt` if that file is not a report.
  """
  @spec report(Path.t()) :: {:ok, report} | {:error, Error.t()}
  def report(out) do
    out = out |> Options.path!() |> Path.expand()
    with {:ok, report} <- Native.train_report(out), do: {:ok, whole(report, out)}
  end

  @doc false
  # Returns the report of a run that is over, else the report fields that the last saved state has, and `out`.
  @spec progress(Path.t()) :: {:ok, map} | {:error, Error.t()}
  def progress(out) do
    path = out |> Options.path!() |> Path.expand()

    case {report(path), Native.train_progress(path)} do
      # Until a resumed run ends, its folder has the report from before it was resumed.
      {{:ok, report}, {:ok, %{steps: steps}}} when steps <= report.steps ->
        {:ok, report}

      {{:ok, report}, {:error, _error}} ->
        {:ok, report}

      {_none, {:ok, state}} ->
        {:ok, state |> Map.update!(:options, &Table.by_name/1) |> Map.put(:out, path)}

      {_none, {:error, error}} ->
        {:error, error}
    end
  end

  @doc """
  Reads the gradient statistics of a run with `:gradient_report` from its folder, during the run or after it.

  Returns a list of `%{step: step, weights: weights}`, one for each line of `gradients.jsonl`. `start_link/1` has an
  example. Each entry of `weights` has

    * the `name` of the weight, and `numbers`, its count of values;
    * `norm`, `mean_abs` and `max_abs` of its gradient, which is the mean over the batches of the step before clipping
      to `:max_grad_norm`;
    * the share of `zeros`, and a `histogram` of the other absolute values by their power of ten: sixteen counts, the
      first of values below 1e-11, the last of values of at least 1e3;
    * its `weight_norm` before the update, and `update_ratio`, the norm of its change divided by
      `weight_norm`; nil if the weight was 0.

  The error is of kind `:not_found` if the run has written no statistics.
  """
  @spec gradients(Path.t()) :: {:ok, [map]} | {:error, Error.t()}
  def gradients(out), do: out |> Options.path!() |> Path.expand() |> Native.train_gradients()

  @doc """
  Measures the memory and the time that a run will take: returns a `Sconce.Trainer.Plan`, which `IO.puts/1` prints.

  The options are those of `start_link/1`. `:corpus` and `:out` are optional, and no file is written. The measurement
  runs steps of a few windows, which took 0.4 to 3 s with networks of up to ten million weights. With `:memory_limit`
  the plan has the number of windows that a run would compute together, its `micro_batch`.

      iex> spec = Sconce.Policy.Spec.new(embedding: {:vector, 2}, heads: [go: {:bernoulli, 1}], backbone: :mlp, hidden_sizes: [8])
      iex> {:ok, plan} = Sconce.Trainer.plan(spec, batch_size: 4, window_size: 4)
      iex> {plan.num_weights, plan.batch_size, plan.bytes > 4 * plan.num_weights}
      {665, 4, true}

  The error is of kind `:out_of_memory` if a single window exceeds `:memory_limit`, or an error of the corpus.
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
  Finds the batch size with the most frames a second: returns a `Sconce.Trainer.Tuning` with that `batch_size`.

  It measures real steps. The batch doubles until two in a row are less than 3 % faster than the best before them, or would
  take more than the share `:backoff` of `:memory_limit`, which defaults to the free memory. All options of `start_link/1` are
  accepted, and these:

  #{Catalogue.docs(:tune)}

  The measurements are kept for later calls, see `Sconce.Tuner`; such a call measures the `batch_size` again, and all
  sizes if its time has changed. `from` of the result is `:measured` or `:cache`.

  The error is of kind `:out_of_memory` if a single window does not fit.

      iex> spec = Sconce.Policy.Spec.new(embedding: {:vector, 2}, heads: [go: {:bernoulli, 1}], backbone: :mlp, hidden_sizes: [8])
      iex> {:ok, tuning} = Sconce.Trainer.tune(spec, initial: 2, max: 4, window_size: 4)
      iex> tuning.batch_size in [2, 4]
      true
  """
  @spec tune(Spec.t() | nil, keyword) :: {:ok, Tuning.t()} | {:error, Error.t()}
  def tune(spec \\ nil, opts) do
    {source, options, own} = Settings.measured!(spec, opts, :tune)
    {tuner, own} = Map.pop!(own, :tuner)
    options = Map.update!(options, :memory_limit, &(&1 || Memory.free()))

    with {:ok, {_corpus, spec}} <- source,
         native = Spec.to_native(spec),
         search = Tuning.search(spec, {native, Map.delete(options, :memory_limit), own}),
         room = options.memory_limit && trunc(own.backoff * options.memory_limit),
         run = &searched(native, options, if(&1, do: %{own | initial: &1, max: &1}, else: own)),
         {:ok, tuning, from} <- Tuned.recall(search, room, tuner, run) do
      {:ok, Tuning.new(%{tuning | memory_limit: options.memory_limit}, spec, from)}
    end
  end

  defp searched(native, options, own),
    do: Call.in_background(&Native.tune_start(&1, native, options, own))

  @doc """
  Finds a learning rate by a range test: returns a `Sconce.Trainer.RangeTest` with the loss of steps whose rate grows by
  a constant factor, and the suggested rates.

  A Spec is trained from new weights, and of a `Sconce.Policy` a copy is trained; the policy, `:out` and all files stay
  unchanged. `:corpus` is required. All options of `start_link/1` are accepted; those of the schedule have no effect.
  Two tests with one seed give bit-identical curves.

  #{Catalogue.docs(:range)}

      iex> dir = Path.join(System.tmp_dir!(), "sconce-range-" <> System.pid())
      iex> game = {List.duplicate([0.5], 20), List.duplicate(1, 20)}
      iex> {:ok, corpus} = Sconce.Corpus.build({:vector, 1}, [game, game], into: dir, heads: [go: {:bernoulli, 1}])
      iex> small = [backbone: :mlp, hidden_sizes: [4], batch_size: 2, window_size: 4, num_it: 3]
      iex> {:ok, test} = Sconce.Trainer.find_learning_rate([corpus: corpus] ++ small)
      iex> for point <- test.points, do: Float.round(point.learning_rate, 7)
      [1.0e-7, 0.001, 10.0]
      iex> File.rm_rf!(dir) != []
      true
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

  # Draws the curves. If a file cannot be written, the report is still returned.
  defp complete(report, %{out: out}) do
    report = %{whole(report, out) | curve: nil}
    title = Report.title(report.spec, report.weights)
    if report.options.gradient_report, do: draw_gradients(out, title)
    drawn? = drawn?(Curve.write(report, curve(out), title: title))
    %{report | curve: if(drawn?, do: curve(out))}
  end

  # A run shorter than `:gradient_report` has no statistics to draw.
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

  defp named(event), do: Map.update!(event, :event, &Map.fetch!(@names, &1))
end
