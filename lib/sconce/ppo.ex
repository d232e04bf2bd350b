defmodule Sconce.PPO do
  alias Sconce.PPO.{Curve, Plan, Settings, Table, Tuning}

  @moduledoc """
  Learns a policy from play, by proximal policy optimisation (Schulman et al. 2017).

      {:ok, run} = Sconce.PPO.start_link(env: :cart_pole, out: "run", target_return: 475)
      {:ok, report} = Sconce.PPO.await(run)
      {:ok, policy} = Sconce.Policy.load("run/best.safetensors")

  A native thread does the work: rollouts in `Sconce.Env`, advantages, and updates. The process `run` starts the thread,
  forwards its events and keeps its result, as that of a `Sconce.Trainer` does. Two runs of one seed give the same
  weights to the last bit, regardless of the number of threads.

  | to | call |
  |---|---|
  | measure the memory and time of a run before it begins | `plan/1` |
  | find the number of environments with the most steps a second | `tune/1` |
  | start or resume a run | `start_link/1` |
  | follow it in a terminal | `Sconce.PPO.Progress.follow/2` |
  | receive its events | `subscribe/1` |
  | read its latest update | `info/1` |
  | wait for its report | `await/2` |
  | stop it with its state saved | `stop/1` |
  | read its report from its folder | `report/1` |

  ## Files

  The folder `:out` belongs to one run. Each file is replaced as a whole.

  | file | content |
  |---|---|
  | `best.safetensors` | the policy with the best mean return of 100 episodes; none where it plays both seats, and none in a league |
  | `last.safetensors` | the latest state: weights, optimiser, environments, memories and random numbers |
  | `run.json` | environment, Spec and options |
  | `report.json`, `curve.svg` | report and learning curve, at the end |
  | `first.safetensors` | the weights that a live run begins with; none if it begins with new ones |
  | `league/self-*.safetensors` | past selves, with the number of their updates |

  ## Opponents

  In an environment of two seats (`:duel`) the policy plays both seats, or against a scripted `:opponent`, or in a league:

      Sconce.PPO.start_link(
        env: :duel,
        out: "run",
        opponents: [:mixer, "old/last.safetensors"],
        past_selves: 10,
        opponent_choice: :prioritised
      )

  Members of the league are the `:opponents` and up to `:past_selves` earlier policies of the run: the first policy, and
  that of every `:snapshot_every` updates. If there are too many, those that stay are spread over the run. In
  `:self_play_share` of the environments the present policy plays, and learns from, both seats. In each other one it has
  one seat, which alternates among the environments, and a member has the other. An episode has one opponent. The
  environments are cut into up to 16 shards of at least 16 environments (fewer than 16 are one shard). In each update a
  shard draws one opponent, which plays all episodes that begin in it.

  `opponent_choice: :prioritised` is the prioritised fictitious self-play of AlphaStar (Vinyals et al. 2019): weight
  `(1 - win rate)^priority`, where a draw is half a win, an earlier game weighs 0.99 times as much as the next, and a
  tenth of the draws stays uniform. A positive return is a win, and 0 a draw. `mean_return` is that against members.
  `Sconce.League` lets the policies of a run play against each other.

  ## Resume

      {:ok, run} = Sconce.PPO.start_link(resume: true, out: "run")

  continues from `last.safetensors`, and reaches the weights of an uninterrupted run to the last bit. A given option
  overrides the recorded one. Only #{Enum.map_join(Table.free(), ", ", &"`#{inspect(&1)}`")} and `:progress` may change;
  any other difference is an error of kind `:mismatch` whose `details` list all `differences`. Schedules (`:clip_to` and
  its kin) end with the run, so other `:steps` change them.

  ## On a card

      Sconce.PPO.start_link(env: :cart_pole, out: "run", device: :cuda, environments: 4096)

  With `device: :cuda` the environments, the policy, the advantages and the updates are on the card, and only figures are
  copied from it. The random numbers are those of the CPU, so a run gives the same weights up to rounding errors, and it
  resumes on either device. A card has the native environments with all their options, policies without memory, and
  independent heads. Anything else is an error of kind `:unavailable` that names it: modules and live games, leagues,
  teachers, `:normalise_observations`, `:normalise_rewards`, `:quantise`, `:prune`, policies with memory, autoregressive heads. An
  H100 made 5.4 million steps a second in 4,096 environments of CartPole, and 9.8 in 32,768 (`bench/card`).

  ## Distillation in play

      Sconce.PPO.start_link(env: :cart_pole, out: "run", teacher: "large/best.safetensors", hidden_sizes: [8],
        policy_weight: 0, value_weight: 0, entropy_weight: 0)

  With `policy_weight: 0` a policy learns from its teachers alone, on the steps that it plays itself: the student meets its
  own mistakes, and the teacher says what it would do there (DAgger, Ross et al. 2011, with the teacher's probabilities;
  on-policy distillation, Agarwal et al. 2024). The loss is `teacher_weight` times KL(teacher || policy). Several teachers
  (a list) teach the mean of their probabilities, for each head; for bounded numbers it is the mean of the divergences.
  `:teacher_temperature` softens both sides. Rewards then serve only the mean return and the choice of the best policy.

  ## Fewer bits

      Sconce.PPO.start_link(env: :cart_pole, out: "run", quantise: :int8)

  With `quantise: :int8` or `:int4` the policy learns weights that lose nothing when they are stored in 8 or 4 bits:
  rollouts and updates read its matrices on a grid of integers, with a scale for each row (`:int8`) or for each
  `:quantise_group` columns of a row (`:int4`). The weights move to the grid linearly in the share `:quantise_ramp` of the
  run that follows the share `:quantise_after`. When they are there, the mean return and the best policy begin anew. Until
  then `best.safetensors` has weights that are not on the grid, and `:target_return` does not end the run. Critics stay in
  f32. `quantise_steps: :learned` learns the scales beside the weights, and with `quantise_activations: true` rollouts and
  updates round the inputs of these matrices as sessions do. The guide [Smaller policies](smaller.livemd) describes the grid.

  `prune: :two_four` or `:unstructured` removes weights of these matrices instead, in the shares `:prune_after` and
  `:prune_ramp` of the run; the same holds for the mean return and the best policy.

  ## Overlap

  By default a rollout and the update that learns from it take turns. With `overlap: true` the policy before an update
  plays the next rollout while the update runs, on threads of its own. Each rollout but the first is then of weights
  one update older than those that learn from it. Its recorded likelihoods are those of the policy that played, so the
  clipped loss stays correct; `approx_kl` and `clip_fraction` include that update, and `:target_kl` stops earlier. The
  waiting rollout and its policy are a part of `last.safetensors`, and a resumed run still has the bits of an
  uninterrupted one. A run plays one rollout more than it learns from. Live games always go on while the run learns, so
  there the option is refused.

  ## Options

  `:env` and `:out` are required. Every option of `Sconce.Policy.Spec` is accepted too, unless a `:spec` is given.
  Embedding and heads are those of the environment. The default policy is `backbone: :mlp, hidden_sizes: [64, 64],
  activation: :tanh, critic: :separate, head_hidden_size: 0`.

  #{Settings.docs()}

  ## Events

  A subscriber receives `{:sconce_ppo, run, event}`, where `event.event` is

  | event | content |
  |---|---|
  | `:start` | `env`, `rows`, `updates`, `steps` and `weights` of the run, `threads` |
  | `:resumed` | `step` of the saved state |
  | `:update` | a point of the `history` below, and `updates_in_all` |
  | `:saved` | `update` and `path` of a state |
  | `:failed` | `update` and `reason` of an error |
  | `:pressure` | a decision after an error, see `Sconce.Pressure` |
  | `:done` | `result` of `await/2` |
  """

  alias Sconce.{Error, Memory, Native, Options, Rollout, Run}
  alias Sconce.Run.Tuned
  alias Sconce.Env.Hosting
  alias Sconce.Native.Call
  alias Sconce.Policy.{Spec, Widths}

  require Logger

  @events Map.new(~w(start resumed update saved failed done)a, &{to_string(&1), &1})
  @stopped Map.new(~w(finished target budget stopped)a, &{to_string(&1), &1})

  @typedoc "The pid or the name of a run."
  @type run :: GenServer.server()

  @typedoc """
  The report of a run.

  | key | content |
  |---|---|
  | `stopped` | `:finished`, `:target` (`:target_return` was reached), `:budget` (`:max_minutes`) or `:stopped` |
  | `env`, `spec`, `options`, `weights` | environment, Spec, options, number of weights |
  | `updates`, `steps`, `episodes`, `seconds` | how long the run was |
  | `mean_return` | mean of the last 100 episodes; nil before the first end, and where the policy plays both seats |
  | `best_return`, `best_update` | the best such mean, and its update |
  | `elo` | Elo of the policy in its league, 1200 at first; nil without one |
  | `opponents` | a list of the league's members: `name`, `games`, `wins`, `draws` and `losses` of the policy, its recent `win_rate`, `elo` of the member, `probability` of its choice |
  | `history` | a list of points, see below |
  | `out`, `curve` | paths of the folder and of the curve |

  A point has `updates`, `steps`, `seconds`, `episodes`, `mean_return`, `mean_length`, `steps_per_second`,
  `rollout_share` of the time, `learning_rate`, `grad_norm`, `loss`, `explained_variance` of the value, `stopped_early`
  (the share of updates that `:target_kl` ended), `rewards` (the mean of each reward term of the first seat per step,
  before its weight; empty in a league, where the first seat is often the opponent's), `elo`, `opponents`
  and `figures`: `policy_loss`, `value_loss`, `entropy`, `approx_kl`, `clip_fraction`, with a teacher `teacher_kl`, and in
  a live run those of `Sconce.Rollout`.
  """
  @type report :: map

  @doc """
  Starts a run. An invalid option raises `ArgumentError` here; any other error is returned by `await/2`.

      iex> out = Path.join(System.tmp_dir!(), "sconce-ppo-" <> System.pid())
      iex> small = [environments: 4, rollout_steps: 8, minibatches: 2, hidden_sizes: [8]]
      iex> {:ok, run} = Sconce.PPO.start_link([env: :cart_pole, out: out, steps: 64] ++ small)
      iex> Sconce.PPO.subscribe(run)
      :ok
      iex> {:ok, report} = Sconce.PPO.await(run)
      iex> {report.stopped, report.updates, report.steps}
      {:finished, 2, 64}
      iex> receive do
      ...>   {:sconce_ppo, ^run, %{event: :done, result: {:ok, result}}} -> result == report
      ...> end
      true
      iex> %{status: :done, update: %{updates: 2}} = Sconce.PPO.info(run)
      iex> Sconce.PPO.stop(run)
      :ok
      iex> Sconce.PPO.report(out) == {:ok, report}
      true
      iex> {:ok, longer} = Sconce.PPO.start_link(resume: true, out: out, steps: 96)
      iex> {:ok, report} = Sconce.PPO.await(longer)
      iex> report.updates
      3
      iex> {:ok, policy} = Sconce.Policy.load(Path.join(out, "last.safetensors"))
      iex> inspect(policy) =~ "vector 4 -> mlp"
      true
      iex> for process <- [run, longer], do: GenServer.stop(process)
      [:ok, :ok]
      iex> File.rm_rf!(out) != []
      true
  """
  @spec start_link(keyword) :: GenServer.on_start()
  def start_link(opts) do
    {name, opts} = opts |> Options.keyword!() |> Keyword.split([:name])
    if name[:name], do: Options.name!(name[:name])
    settings = Settings.new!(opts)

    Run.start_link(
      %Run{
        settings: settings,
        kind: "play",
        tag: :sconce_ppo,
        start: &native(&1, settings),
        named: &named/1,
        complete: &complete(&1, settings),
        early: [:resumed, :start, :pressure],
        shown: [:update],
        pressure: settings.pressure,
        again: &again(opts, &1, &2)
      },
      name
    )
  end

  defp again(opts, saved?, device) do
    settings = opts |> Settings.again(saved?, device) |> Settings.new!()
    &native(&1, settings)
  end

  @doc false
  def child_spec(opts), do: Run.child_spec(__MODULE__, opts)

  @doc """
  Waits for the result of a run. Any number of processes may wait. `start_link/1` has an example.

  | kind of error | cause |
  |---|---|
  | `:deadline` | no result after `timeout` milliseconds; the run continues. Or a step of a module was late, in each attempt that `:pressure` allows |
  | `:cancelled` | the process is gone, or the run was stopped before its first update |
  | `:non_finite` | a reward, value, loss or gradient is not finite; the last saved state is kept |
  | `:unavailable` | the `:device` cannot be used, or something has no form on a card; the error names it |
  | `:io` | a state could not be saved |
  | `:mismatch`, `:not_found`, `:corrupt` | environment, Spec, folder and options do not fit each other |
  """
  @spec await(run, timeout) :: {:ok, report} | {:error, Error.t()}
  def await(run, timeout \\ :infinity), do: Run.await(run, timeout, :learn)

  @doc "Sends the events of a run to the caller, as `{:sconce_ppo, pid, event}`; `start_link/1` has an example."
  @spec subscribe(run) :: :ok | {:error, Error.t()}
  def subscribe(run), do: Run.subscribe(run, :learn)

  @doc """
  Stops a run after its present update: it saves `last.safetensors` and returns a report whose `stopped` is `:stopped`
  from `await/2`. On a run that is over this is a no-op. `start_link/1` has an example.
  """
  @spec stop(run) :: :ok | {:error, Error.t()}
  def stop(run), do: Run.stop(run, :learn)

  @doc """
  Returns the `status` of a run (`:running`, `:done` or `:failed`), its folder `out`, and its latest `update`, nil
  before the first one. `start_link/1` has an example.
  """
  @spec info(run) :: map | {:error, Error.t()}
  def info(run), do: Run.info(run, :learn)

  @doc """
  Reads the report of a run that is over from its folder; `start_link/1` has an example.

  The error is of kind `:not_found` if the folder has no `report.json`, and of kind `:corrupt` if that file is not a
  report.
  """
  @spec report(Path.t()) :: {:ok, report} | {:error, Error.t()}
  def report(out) do
    out = out |> Options.path!() |> Path.expand()
    with {:ok, report} <- Native.ppo_report(out), do: {:ok, whole(report, out)}
  end

  @doc """
  Measures the memory and the time that a run will take: returns a `Sconce.PPO.Plan`, which `IO.puts/1` prints.

  The options are those of `start_link/1`, except `resume: true` and live games, whose pace is their own. `:out` is
  optional; no file is written, so past selves stay in memory. The measurement plays and learns in small runs of its
  own, which take one to three seconds with small policies.

      iex> small = [environments: 4, rollout_steps: 8, minibatches: 2, hidden_sizes: [8]]
      iex> {:ok, plan} = Sconce.PPO.plan([env: :cart_pole, steps: 640] ++ small)
      iex> {plan.num_weights, plan.updates, plan.update_steps, plan.bytes > 16 * plan.num_weights}
      {107, 20, 32, true}

  Errors are those of a run that cannot begin, see `await/2`.
  """
  @spec plan(keyword) :: {:ok, Plan.t()} | {:error, Error.t()}
  def plan(opts) do
    {settings, _none} = Settings.measured!(opts, [])

    measured(
      settings,
      nil,
      fn ref, world, spec ->
        Native.ppo_plan_start(ref, world, spec, settings.options)
      end,
      &Plan.new/3
    )
  end

  @doc """
  Finds the number of environments with the most steps a second: returns a `Sconce.PPO.Tuning` with that number.

  It measures real rollouts and updates, beginning with the number in `:environments`. The number doubles until two
  in a row are less than 3 % faster than the best before them, or a run would take more than the share `:backoff` of `:memory_limit`, or
  would have less than one update in its `:steps`. All options of `plan/1` are accepted, and these:

  #{Tuning.docs()}

  The measurements are kept for later calls, see `Sconce.Tuner`; such a call measures the number again, and all
  numbers if its time has changed. `from` of the result is `:measured` or `:cache`.

  The error is of kind `:out_of_memory` if a single environment does not fit.

      iex> small = [environments: 4, rollout_steps: 8, minibatches: 2, hidden_sizes: [8]]
      iex> {:ok, tuning} = Sconce.PPO.tune([env: :cart_pole, max: 8] ++ small)
      iex> tuning.environments in [4, 8]
      true
  """
  @spec tune(keyword) :: {:ok, Tuning.t()} | {:error, Error.t()}
  def tune(opts) do
    {settings, own} = Settings.measured!(opts, Tuning.schema())
    {tuner, own} = Map.pop!(own, :tuner)
    own = Map.update!(own, :memory_limit, &(&1 || Memory.free()))

    with {:ok, {env, spec, _count}} <- settings.source,
         asked = {Hosting.text(env), Spec.to_native(spec), settings.options, own},
         search = Tuning.search(env, spec, asked),
         room = own.memory_limit && trunc(own.backoff * own.memory_limit),
         {:ok, tuning, from} <- Tuned.recall(search, room, tuner, &searched(settings, own, &1)) do
      {:ok, Tuning.new(%{tuning | memory_limit: own.memory_limit}, env, spec, from)}
    end
  end

  # Measures the numbers of environments, or only the given one.
  defp searched(settings, own, only) do
    own = if only, do: %{own | max: only}, else: own
    options = if only, do: Map.put(settings.options, :environments, only), else: settings.options
    start = fn ref, world, spec -> Native.ppo_tune_start(ref, world, spec, options, own) end
    measured(settings, own.max, start, fn found, _env, _spec -> found end)
  end

  # Measures with the processes of a world, which end afterwards. There are `count` environments at most, or as many as a
  # run has.
  defp measured(settings, count, start, new) do
    with {:ok, {env, spec, own}} <- settings.source,
         {:ok, name, host, nil} <- hosted(env, count || own, settings.hosting) do
      native = Spec.to_native(spec)
      world = {name, host && host.ref}

      try do
        with {:ok, measured} <- Call.in_background(&start.(&1, world, native)),
             do: {:ok, new.(measured, env, spec)}
      after
        host && Hosting.close(host)
      end
    end
  end

  defp native(ref, %{source: source, out: out, options: options, resume: resume} = settings) do
    with {:ok, {env, spec, count}} <- source,
         :ok <- Widths.warn(spec),
         {:ok, name, host, inbox} <- hosted(env, count, settings.hosting) do
      world = {name, host && host.ref, inbox}
      over = fn -> host && Hosting.close(host) end

      case Native.ppo_start(ref, world, Spec.to_native(spec), out, options, resume) do
        {:ok, task} ->
          {:ok, task, over}

        refused ->
          over.()
          refused
      end
    end
  end

  defp hosted({:live, rollout}, _count, _hosting) do
    with {:ok, %{inbox: inbox}} <- Rollout.source(rollout), do: {:ok, "live", nil, inbox}
  end

  defp hosted(env, count, [processes, timeout]) do
    if Hosting.world?(env) do
      with {:ok, host} <- Hosting.open(env, count, processes, timeout),
           do: {:ok, Hosting.text(env), host, nil}
    else
      {:ok, to_string(env), nil, nil}
    end
  end

  defp named(event), do: Map.update!(event, :event, &Map.fetch!(@events, &1))

  # Draws the curve. If the file cannot be written, the report is still returned.
  defp complete(report, %{out: out}) do
    report = whole(report, out)

    case Curve.write(report, curve(out)) do
      :ok ->
        %{report | curve: curve(out)}

      {:error, error} ->
        Logger.warning(Exception.message(error))
        report
    end
  end

  defp whole(report, out) do
    curve = if File.exists?(curve(out)), do: curve(out)

    report
    |> Map.merge(%{out: out, curve: curve})
    |> Map.update!(:spec, &Spec.from_native/1)
    |> Map.update!(:options, &Table.by_name/1)
    |> Map.update!(:stopped, &Map.fetch!(@stopped, &1))
  end

  defp curve(out), do: Path.join(out, "curve.svg")
end
