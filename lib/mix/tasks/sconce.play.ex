defmodule Mix.Tasks.Sconce.Play do
  alias Sconce.{Device, Env, Figures, Files, League, Options, PPO, Switches, Text, Trainer}
  alias Sconce.Env.{Catalogue, Hosting}
  alias Sconce.Env.Drawing.{Live, Svg}
  alias Sconce.PPO.{Curve, Progress, Settings, Tuning}
  alias Sconce.Trainer.Curve.Page
  alias Sconce.Trainer.Signals

  @shortdoc "Plays a policy in an environment, or learns one from play"

  @env [
    env: [
      type: {:or, [nil, :string]},
      doc:
        "Environment, or a module of the app (`Sconce.Env.World`); by default that of the checkpoint."
    ]
  ]
  @play [
    episodes: Catalogue.schema(:play)[:episodes],
    sample: [
      type: :boolean,
      default: false,
      doc: "Samples actions instead of the likeliest ones."
    ],
    render: [type: :boolean, default: false, doc: "Shows an episode in the terminal; q ends it."],
    svg: [type: :path, doc: "File for an episode as an animated picture."]
  ]
  @learn [
    learn: [type: :boolean, default: false, doc: "Learns a policy by `Sconce.PPO`."],
    out: [type: :path, doc: "Folder of the run, required for a new one."],
    resume: [
      type: :path,
      doc: "Folder of the run to resume; without a folder that of `--out`. Implies `--learn`."
    ]
  ]
  @device [
    device: [
      type: Device.type(),
      doc: "`cpu`, `cuda`, `cuda:1` or `auto`, see `Sconce.Device`."
    ]
  ]
  @before [
    plan: [
      type: :boolean,
      default: false,
      doc: "Prints the memory and time of the run, and ends."
    ],
    tune: [type: :boolean, default: false, doc: "Finds the number of environments, and ends."]
  ]
  @before_options Tuning.schema()
  @league [
            league: [
              type: :boolean,
              default: false,
              doc: "Lets all pairs of players play, see `Sconce.League`."
            ]
          ] ++ Keyword.take(League.schema(), [:games, :deterministic])
  # Switches of both kinds of calls; the table of PPO lists them.
  @both [:seed | Keyword.keys(Catalogue.schema(:spec))]
  @melee [:embedding, :image, :queue_depth, :num_delays, :previous_action] ++
           [:heads, :axis_buckets, :shoulder_buckets]

  @moduledoc """
  Plays episodes with the policy of a checkpoint and prints its returns.

      $ mix sconce.play run/best.safetensors
      $ mix sconce.play run/best.safetensors --env duel --opponent mixer --episodes 1000
      $ mix sconce.play run/best.safetensors --render --svg episode.svg

  With `--learn` the task learns a policy from play:

      $ mix sconce.play --learn --env cart_pole --out run --target-return 475
      $ mix sconce.play --resume run --steps 1000000

  With `--league` players play against each other: scripted players, checkpoints,
  and folders of runs with their past selves:

      $ mix sconce.play --league --env duel striker thrower guarder
      $ mix sconce.play --league run mixer --games 1000 --svg league.svg

  `Sconce.Env` describes the environments. Without a terminal, `--render` prints a
  few pictures.

  #{Switches.docs(@env ++ @play)}

  `--seed`, `--action-repeat`, `--frame-stack`, `--opponent`, `--reward-weights`
  and `--time-limit` are accepted too. Their defaults are the values of the run
  that made the checkpoint.

  ## League

  `--env`, `--seed`, `--svg` (here a picture of all results), `--action-repeat`,
  `--frame-stack`, `--time-limit`, and for a module `--processes` and
  `--step-timeout-ms` are accepted too.

  #{Switches.docs(@league)}

  ## Learning

  SIGTERM, SIGHUP and SIGQUIT end a run with its state saved. Ctrl-C loses all
  updates since the last save (`--save-every`).

  #{Switches.docs(@learn)}

  ## Before a run

      $ mix sconce.play --learn --plan --env cart_pole --environments 256

  These switches learn nothing and need no `--out`; see `Sconce.PPO.plan/1` and
  `tune/1`.

  #{Switches.docs(@before ++ @before_options)}

  ## The model

  Options of `Sconce.Policy.Spec`; a list of sizes is written as `64,64`:

  #{Switches.docs(Keyword.drop(Trainer.Switches.spec_schema(), @melee))}

  ## The run

  Reward weights are written as `touch=1,win=0.5`:

  #{Switches.docs(Keyword.drop(Settings.schema(), [:env, :out, :resume, :spec, :progress, :pressure, :device]) ++ @device)}
  """

  use Mix.Task

  @requirements ["app.config"]

  # Size of the curve in characters.
  @columns 60
  @lines 8

  @impl true
  def run(args), do: Switches.help?(args, __MODULE__) || args |> parse() |> act()

  defp act({:play, checkpoint, opts}), do: play(checkpoint, opts)
  defp act({:learn, opts}), do: learn(opts)
  defp act({:plan, opts}), do: opts |> answer(&PPO.plan/1) |> to_string() |> say()
  defp act({:tune, opts}), do: opts |> answer(&PPO.tune/1) |> to_string() |> say()
  defp act({:league, players, opts}), do: league(players, opts)

  @doc false
  def schema do
    learn = @learn ++ @before ++ @before_options
    own = Keyword.keys(@env ++ @play ++ learn ++ @league)
    spec = Keyword.drop(Trainer.Switches.spec_schema(), @melee)
    run = Settings.schema() |> Keyword.drop([:spec, :progress, :pressure]) |> Keyword.drop(own)
    # A keyword list has a spelling of its own.
    run = Keyword.replace!(run, :reward_weights, type: :string)
    run = Keyword.replace!(run, :device, @device[:device])
    @env ++ @play ++ learn ++ @league ++ spec ++ run
  end

  # Returns the kind of call and its options.
  defp parse(args) do
    checked(fn ->
      {opts, rest} = args |> Switches.resumable() |> Switches.parse!(schema())
      opts = opts |> named() |> weighed()

      cond do
        opts[:league] -> contest!(opts, rest)
        opts[:learn] || opts[:resume] -> learning!(opts, rest)
        true -> playing!(opts, rest)
      end
    end)
  end

  defp contest!(opts, rest) do
    known = [:svg, :league | Keyword.keys(League.schema())]

    for {name, _value} <- opts,
        name not in known,
        do: raise(ArgumentError, "#{Switches.switch(name)} does not go with --league")

    # The folder of a run is several players.
    rest != [] || raise ArgumentError, "which players? mix sconce.play --league PLAYER PLAYER"

    {:league, rest, Keyword.delete(opts, :league)}
  end

  defp playing!(opts, rest) do
    for {name, _value} <- opts,
        name not in (Keyword.keys(@env ++ @play) ++ @both),
        do: raise(ArgumentError, "#{Switches.switch(name)} needs #{mode(name)}")

    case rest do
      [checkpoint] -> {:play, checkpoint, opts}
      [] -> raise ArgumentError, "which checkpoint? mix sconce.play CHECKPOINT"
      [_first, second | _] -> raise ArgumentError, "unknown argument #{second}"
    end
  end

  defp mode(name), do: if(Keyword.has_key?(@league, name), do: "--league", else: "--learn")

  defp learning!(opts, rest) do
    if rest != [], do: raise(ArgumentError, "unknown argument #{hd(rest)}")

    for {name, _value} <- opts,
        name in Keyword.keys(@play ++ @league),
        do: raise(ArgumentError, "#{Switches.switch(name)} does not go with --learn")

    {actions, opts} = opts |> Keyword.delete(:learn) |> Keyword.split(Keyword.keys(@before))
    action = action!(for {name, true} <- actions, do: name)

    for name <- Keyword.keys(@before_options),
        action != :tune and opts[name] != nil,
        do: raise(ArgumentError, "#{Switches.switch(name)} needs --tune")

    {action, complete!(opts, action)}
  end

  defp action!([]), do: :learn
  defp action!([name]), do: name
  defp action!(_both), do: raise(ArgumentError, "--tune does not go with --plan")

  defp complete!(opts, :learn),
    do: if(opts[:resume], do: Switches.resumed!(opts), else: anew!(opts))

  defp complete!(opts, action) do
    opts[:resume] &&
      raise ArgumentError, "--resume does not go with #{Switches.switch(action)}"

    Switches.needed!(opts, :env)
    opts
  end

  defp anew!(opts) do
    for name <- [:env, :out], do: Switches.needed!(opts, name)
    opts
  end

  # The environment as an atom, which may be a module of the app.
  defp named(opts) do
    case Keyword.pop(opts, :env) do
      {nil, opts} ->
        opts

      {text, opts} ->
        names = Map.new(Env.names(), &{to_string(&1), &1})
        world = Hosting.named(text)
        world || Options.known!(text, Map.keys(names), "environment")
        [env: world || names[text]] ++ opts
    end
  end

  # Reward weights as a keyword list; the environment checks the names.
  defp weighed(opts) do
    case Keyword.pop(opts, :reward_weights) do
      {nil, opts} -> opts
      {text, opts} -> [reward_weights: weights!(text, opts[:env])] ++ opts
    end
  end

  defp weights!(text, env), do: for(part <- String.split(text, ","), do: weight!(part, env))

  defp weight!(text, env) do
    with [term, number] <- String.split(text, "="),
         {weight, ""} <- Float.parse(number),
         known when known != nil <- term_name(term, env) do
      {known, weight}
    else
      _other ->
        raise ArgumentError, "--reward-weights cannot be #{inspect(text)}, expected term=number"
    end
  end

  # Atoms are made of the names of terms only, not of the user's text.
  defp term_name(term, env) do
    terms =
      for name <- Enum.uniq(Env.names() ++ List.wrap(env)),
          {:ok, spec} = Env.spec(name),
          term <- spec.reward_terms,
          do: term

    if term in terms, do: String.to_atom(term)
  end

  defp play(checkpoint, opts) do
    {env, opts} = Keyword.pop(opts, :env)
    {show, opts} = Keyword.split(opts, [:render, :svg])
    {sample, opts} = Keyword.pop(opts, :sample, false)
    opts = [deterministic: not sample] ++ opts
    # An invalid path is refused before the play.
    with {:error, error} <- Page.check(show[:svg], :write_svg), do: refuse(error)
    if show[:svg], do: writable!(show[:svg])
    show(checkpoint, env, Keyword.drop(opts, [:episodes]), show)
    checkpoint |> answer(&Env.play(&1, env, opts)) |> report() |> say()
  end

  defp show(_checkpoint, _env, _opts, []), do: :ok

  defp show(checkpoint, env, opts, show) do
    trace = answer(checkpoint, &Env.trace(&1, env, opts))
    if show[:render], do: Live.show(trace)

    if show[:svg] do
      with {:error, error} <- Svg.write(trace, show[:svg]), do: refuse(error)
      say(Text.printable("picture  #{show[:svg]}"))
    end
  end

  defp league(players, opts) do
    {svg, opts} = Keyword.pop(opts, :svg)
    with {:error, error} <- Page.check(svg, :write_svg), do: refuse(error)
    if svg, do: writable!(svg)
    league = answer(players, &League.play(&1, opts))
    say(League.table(league))

    if svg do
      with {:error, error} <- League.write(league, svg), do: refuse(error)
      say(Text.printable("picture  #{svg}"))
    end
  end

  defp writable!(path) do
    with {:error, reason} <- Files.check(path),
         do: Mix.raise("--svg: #{path}: #{:file.format_error(reason)}")
  end

  defp answer(players, work) do
    case checked(fn -> work.(players) end) do
      {:ok, answer} -> answer
      {:error, error} -> refuse(error)
    end
  end

  defp report(played) do
    episodes = Figures.counted(length(played.returns), "episode")

    """
    #{Hosting.label(played.env)} · #{episodes}, #{Figures.grouped(played.terminated)} ended by the rules
    return  mean #{number(played.mean)}  median #{number(played.median)}  min #{number(played.min)}  max #{number(played.max)}
    length  mean #{number(Enum.sum(played.lengths) / length(played.lengths))}
    #{Figures.grouped(played.decisions)} decisions of #{Figures.decimal(played.decision_us)} us\
    """
  end

  defp number(value), do: :erlang.float_to_binary(value / 1, decimals: 1)

  defp learn(opts) do
    # `System.stop/0` waits for a run to save its state only if the application is started.
    {:ok, _apps} = Application.ensure_all_started(:sconce)

    case Signals.stopping(fn -> follow(opts) end) do
      {:ok, report} -> finish(report)
      {:error, error} -> refuse(error)
    end
  end

  defp follow(opts) do
    with {:ok, run} <- checked(fn -> PPO.start_link(opts) end), do: Progress.follow(run)
  end

  # Prints without Mix's shell, which no longer runs while a signal stops the VM.
  defp finish(report) do
    curve = report |> Curve.text(@columns, @lines) |> String.trim_trailing("\n")
    parts = [curve, Enum.join(files(report), "\n")]
    IO.puts("\n" <> (parts |> Enum.reject(&(&1 == "")) |> Enum.join("\n\n")))
  end

  defp files(report) do
    best = Path.join(report.out, "best.safetensors")
    policy = if File.exists?(best), do: best, else: Path.join(report.out, "last.safetensors")

    for {name, text, true} <- [
          {"policy", policy, true},
          {"curve", report.curve, report.curve != nil},
          {"play", "mix sconce.play #{policy}", true},
          {"resume", "mix sconce.play --resume #{report.out}", report.stopped == :stopped}
        ],
        do: Text.printable(String.pad_trailing(name, 8) <> text)
  end

  defp checked(work), do: Switches.checked!(schema(), work)
  defp refuse(error), do: Switches.fail!(error, schema())

  defp say(text), do: Mix.shell().info(text)
end
