defmodule Mix.Tasks.Sconce.Evolve do
  alias Sconce.{Env, Figures, Files, Policy, Switches, Text}
  alias Sconce.Evolve.{Archive, Neat, Progress, Run, Search, Settings}
  alias Sconce.Trainer.Signals

  @shortdoc "Evolves policies in an environment"

  @presets Enum.map_join(Settings.presets(), "\n", fn {name, opts} ->
             switches =
               Enum.map_join(opts, " ", fn
                 {key, true} ->
                   Switches.switch(key)

                 {key, list} when is_list(list) ->
                   "#{Switches.switch(key)} #{Enum.join(list, ",")}"

                 {key, value} ->
                   "#{Switches.switch(key)} #{value}"
               end)

             "  * `#{name}`: `#{switches}`"
           end)

  @moduledoc """
  Evolves policies in an environment, and writes the best one, the archive and
  its picture into `--out`.

      $ mix sconce.evolve --preset cart_pole --out run
      $ mix sconce.evolve --env cart_pole --archive grid:50x50 \\
          --measures final:0,input:0 --ranges=-2.4..2.4,0..1 --out run

  A line shows the generation, evaluations a second, the returns, and coverage and
  QD score of the archive. The end shows the share of time of each stage.
  `mix sconce.monitor run` watches a run from another terminal, and
  `mix sconce.runs stop ID` ends it with its state saved, as SIGTERM does.

      $ mix sconce.evolve --resume run --generations 500

  goes on from the last save; a killed run ends with the same bits as one that was
  never interrupted. The switches of the run are in its file `switches`.

  | file | content |
  |---|---|
  | `best.safetensors` | a policy: the mean of a strategy, or the best elite of the archive |
  | `archive.safetensors`, `archive.svg` | the archive, and its picture if it has two measures |
  | `search.json`, `archive-a.safetensors`, .. | the state |

  An archive may have lost the candidate with the best return of the run: below
  `--archive-rate 1` a worse one may replace it, and a full `unstructured` one may
  not take it. The line of `best.safetensors` then shows the return of its elite.

  #{Switches.docs(Settings.schema(:own))}

  ## Before a run

  `--plan` and `--sweep` need no `--out`.

  #{Switches.docs(Settings.schema(:before))}

  ## Presets

  Other switches override those of a preset. `xor` evolves networks by
  `Sconce.Evolve.Neat` until they compute XOR, and draws the best one; only
  `--out`, `--generations`, `--seed` and `--batch` go with it.

  #{@presets}

  ## The search

  See `Sconce.Evolve.Search`.

  #{Switches.docs(Settings.schema(:search))}
  """

  use Mix.Task

  @requirements ["app.config"]

  @switches "switches"
  # Batches of a sweep.
  @sizes [64, 128, 256, 512, 1024, 2048, 4096, 8192]
  # Seconds for which a batch size is measured.
  @sweep_s 1.0

  @impl true
  def run(args), do: Switches.help?(args, __MODULE__) || args |> parse() |> act()

  defp parse(args) do
    checked(fn ->
      {given, rest} = args |> Switches.resumable() |> Switches.parse!(Settings.schema())
      if rest != [], do: raise(ArgumentError, "unknown argument #{hd(rest)}")
      {actions, given} = Keyword.split(given, [:plan, :sweep])
      actions = for({name, true} <- actions, do: name)

      if actions == [] and Settings.xor?(given),
        do: xor(given),
        else: action(actions, given, args)
    end)
  end

  defp action([], given, args) do
    if given[:resume],
      do: given |> Switches.resumed!() |> resumed(args),
      else: anew(given, args)
  end

  defp action([name], given, _args) do
    given[:resume] && raise ArgumentError, "--resume does not go with #{Switches.switch(name)}"
    {name, Settings.complete!(given)}
  end

  defp action(_both, _given, _args), do: raise(ArgumentError, "--plan does not go with --sweep")

  defp anew(given, args) do
    Switches.needed!(given, :out)
    {:evolve, Settings.complete!(given), args}
  end

  defp xor(given) do
    Switches.needed!(given, :out)
    {:xor, Keyword.merge([generations: 300, seed: 0, batch: 150], given)}
  end

  # The switches of the run, and those of this call over them.
  defp resumed(opts, args) do
    path = Path.join(opts[:out], @switches)

    case File.read(path) do
      {:ok, text} ->
        before = String.split(text, "\n", trim: true)
        {saved, _rest} = Switches.parse!(before, Settings.schema())
        given = Keyword.delete(opts, :resume)
        {:resume, saved |> Keyword.merge(given) |> Settings.complete!(), before ++ kept(args)}

      {:error, reason} ->
        raise ArgumentError, "--resume: #{path}: #{:file.format_error(reason)}"
    end
  end

  # Without the folder, which may move.
  defp kept([]), do: []
  defp kept(["--" | _rest]), do: []
  defp kept([switch, "--" <> _ = next | rest]) when switch == "--resume", do: kept([next | rest])
  defp kept([switch, _folder | rest]) when switch in ["--resume", "--out"], do: kept(rest)
  defp kept(["--resume" | rest]), do: kept(rest)
  defp kept(["--resume=" <> _ | rest]), do: kept(rest)
  defp kept(["--out=" <> _ | rest]), do: kept(rest)
  defp kept([argument | rest]), do: [argument | kept(rest)]

  defp act({:plan, opts}) do
    search = answer(fn -> Settings.search(opts) end)
    say(answer(fn -> Search.plan(search, opts[:generations]) end) |> plan(search))
  end

  defp act({:sweep, opts}) do
    sizes = checked(fn -> Settings.batches(opts, @sizes) end)
    rates = answer(fn -> Search.sweep(&Settings.search(opts, &1), sizes, @sweep_s) end)
    {best, _rate} = Enum.max_by(rates, &elem(&1, 1))

    for {size, rate} <- rates do
      mark = if size == best, do: "  best", else: ""
      size = String.pad_leading(Figures.grouped(size), 6)
      say("batch #{size}  #{Figures.grouped(round(rate))} evaluations a second#{mark}")
    end
  end

  defp act({:xor, opts}) do
    neat = [inputs: 2, outputs: 1, population: opts[:batch], seed: opts[:seed]]
    picture = Path.join(opts[:out], "best.svg")

    {fit, best} =
      answer(fn ->
        with :ok <- made(opts[:out]),
             {:ok, neat} <- Neat.new(neat),
             patterns = [[0, 0], [0, 1], [1, 0], [1, 1]],
             goal = [generations: opts[:generations], stop_at: 3.9],
             {:ok, fit} <- timed(fn -> Neat.fit(neat, patterns, [[0], [1], [1], [0]], goal) end),
             {:ok, best} <- Neat.best(neat),
             :ok <- Neat.write(best.genome, picture),
             do: {:ok, {fit, best}}
      end)

    reached = if fit.reached, do: "solved", else: "not solved"
    count = Figures.counted(fit.generations, "generation")
    say("XOR #{reached} after #{count}, fitness #{Float.round(best.fitness, 3)} of 4")
    rate = round(opts[:batch] * fit.generations / fit.wall_s)
    say("#{Figures.grouped(rate)} genome-generations a second")
    say("time: #{shares(fit.seconds)}")
    say(["file  ", Text.printable(picture)])
  end

  defp act({kind, opts, args}) do
    # `System.stop/0` waits for a run to save its state only if the application is started.
    {:ok, _apps} = Application.ensure_all_started(:sconce)
    search = answer(fn -> Settings.search(opts) end)
    prepare(kind, search, opts, args)
    report = answer(fn -> Signals.stopping(fn -> follow(search, opts) end) end)
    {best, others} = files(search, opts)
    note = answer(fn -> note(search, report.progress.best) end)
    files = for path <- [best | others], do: ["\nfile  ", Text.printable(path)]
    say([Progress.summary(report), List.insert_at(files, 1, note)])
  end

  defp timed(work) do
    {us, answer} = :timer.tc(work)
    with {:ok, fit} <- answer, do: {:ok, Map.put(fit, :wall_s, max(us, 1) / 1.0e6)}
  end

  defp shares(seconds) do
    all = seconds |> Map.values() |> Enum.sum() |> max(1.0e-9)

    Enum.map_join([:variation, :evaluation, :species], ", ", fn stage ->
      "#{stage} #{:erlang.float_to_binary(100 * seconds[stage] / all, decimals: 1)} %"
    end)
  end

  defp prepare(:evolve, _search, opts, args) do
    folder = opts[:out]

    if File.exists?(Path.join(folder, "search.json")),
      do: Mix.raise("--out: #{folder} has a run; --resume #{folder} goes on with it")

    answer(fn ->
      with :ok <- made(folder),
           :ok <- record(folder, kept(args)),
           do: {:ok, :ready}
    end)
  end

  defp prepare(:resume, search, opts, args) do
    answer(fn ->
      with :ok <- Search.resume(search, opts[:out]),
           :ok <- record(opts[:out], args),
           do: {:ok, :ready}
    end)
  end

  defp made(folder) do
    with {:error, reason} <- File.mkdir_p(folder),
         do: raise(ArgumentError, "--out: #{folder}: #{:file.format_error(reason)}")
  end

  defp record(folder, args),
    do: Files.write(Path.join(folder, @switches), Enum.map(args, &[&1, "\n"]), :evolve)

  defp follow(search, opts) do
    own = Keyword.take(opts, [:out, :generations, :save_seconds])

    with {:ok, run} <- Run.start_link(search, own),
         do: Progress.follow(run, note: "TERM, HUP and QUIT end the run with its state saved")
  end

  defp files(search, opts) do
    out = opts[:out]
    best = Path.join(out, "best.safetensors")

    answer(fn ->
      with {:ok, policy} <- Search.policy(search),
           :ok <- Policy.save(policy, best, notes: %{"env" => world(search.env, opts)}),
           {:ok, pictures} <- archive(search.archive, out),
           do: {:ok, {best, pictures}}
    end)
  end

  # The file of a search with elites has the best elite that is left. Elites of CMA-MAE may be worse than those that they
  # replaced, and an archive of balls that is full stores nothing outside of them.
  defp note(%{source: source} = search, best) when source == :elites or is_tuple(source) do
    with {:ok, %{objectives: %{data: data}}} <- Archive.elites(%{search.archive | form: :map}) do
      case Enum.max(for <<objective::float-64-little <- data>>, do: objective) do
        ^best -> {:ok, ""}
        left -> {:ok, "  return #{Float.round(left, 2)}; no elite has the best return"}
      end
    end
  end

  defp note(_strategy, _best), do: {:ok, ""}

  # `mix sconce.play` plays in the same world.
  defp world(env, opts) do
    names = Keyword.keys(Env.Catalogue.schema(:spec)) -- [:reward_weights]
    given = for name <- names, value = opts[name], into: %{}, do: {to_string(name), value}
    Map.put(given, "env", to_string(env))
  end

  defp archive(nil, _out), do: {:ok, []}

  defp archive(archive, out) do
    [file, picture] = for name <- ["archive.safetensors", "archive.svg"], do: Path.join(out, name)

    with :ok <- Archive.save(archive, file) do
      case archive.measures == 2 && Archive.write(archive, picture) do
        :ok -> {:ok, [file, picture]}
        false -> {:ok, [file]}
        error -> error
      end
    end
  end

  defp plan(plan, search) do
    [
      "#{inspect(search)}\n",
      "population  #{Figures.size(plan.population_bytes)}\n",
      if(plan.strategy_bytes, do: "strategy    #{Figures.size(plan.strategy_bytes)}\n", else: []),
      if(plan.archive_bytes,
        do: "archive     #{Figures.size(plan.archive_bytes)} when it is full\n",
        else: []
      ),
      "rate        #{Figures.grouped(round(plan.evaluations_per_second))} evaluations a second, measured\n",
      "time        #{Figures.decimal(plan.seconds)} s for #{Figures.counted(plan.generations, "generation")}"
    ]
  end

  defp answer(work) do
    case checked(work) do
      {:ok, answer} -> answer
      {:error, error} -> Switches.fail!(error, Settings.schema())
    end
  end

  defp checked(work), do: Switches.checked!(Settings.schema(), work)
  defp say(text), do: Mix.shell().info(IO.iodata_to_binary(text))
end
