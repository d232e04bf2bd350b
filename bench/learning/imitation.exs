# Runs the full imitation task of the shared peers, by PyTorch and then by Sconce:
#
#     SCONCE_REPLAYS=replays SCONCE_PEERS=peers mix run learning/imitation.exs > learning/imitation.txt
#     ... mix run learning/imitation.exs --models gru-ar --minutes 3 --threads 2 --seed 1
#
# `replays` has the folders `train` and `validation`. The peer trains for `--minutes`. Sconce then trains
# for the same number of steps, with the same sizes, batch, windows, dropout, mirror, prior, optimiser and
# schedule. Both are scored after their last step, without selection, on every frame with control
# (`imitation.py` beside this file). The state is carried through the game; the peer is also scored on
# adjacent windows from a zero state, and its better score counts.
#
# Times include everything from replays to scores: `imitation.py` for the peer, and `mix sconce.import`,
# `train` and `eval` for Sconce. CPU time is shown beside wall time, which is longer on a machine with other
# work. The status is 1 if Sconce has a worse score or takes longer. Curves are written to `imitation.svg`
# beside this file. `PEERS_DIR` is PyTorch's environment, see bench/peers/README.md.

defmodule Imitation do
  alias Sconce.Trainer
  alias Sconce.Trainer.Curve.{Page, Scale}

  @defaults [models: "gru-ar,gru", minutes: 3.0, threads: 2, seed: 1]
  @switches [models: :string, minutes: :float, threads: :integer, seed: :integer]
  @models %{
    "mlp" => ~w(--backbone mlp),
    "gru" => ~w(--backbone gru),
    "gru-ar" => ~w(--backbone gru --heads autoregressive)
  }
  # The options --pairs --mirror --dropout 0.3 --input-dropout 0.3 of the peer, and its defaults.
  @theirs ~w(--pairs --mirror --dropout 0.3 --input-dropout 0.3)
  @ours ~w(--prior --mirror 0.5 --dropout 0.3 --input-dropout 0.3 --loss plain --batch-size 64) ++
          ~w(--window-size 60 --learning-rate 0.001 --weight-decay 0.01 --warmup-steps 100) ++
          ~w(--lr-schedule cosine --validation-mode carry --no-evaluate)
  @curve_points 8
  @colors %{ours: "#2563eb", theirs: "#ea580c"}

  def main(args) do
    {opts, []} = OptionParser.parse!(args, strict: @switches)
    opts = Keyword.merge(@defaults, opts)
    dir = Path.join(System.tmp_dir!(), "sconce-imitation-#{System.pid()}")
    File.mkdir_p!(dir)
    Enum.each(~w(SCONCE_REPLAYS SCONCE_PEERS), &folder!/1)

    try do
      results = for name <- String.split(opts[:models], ","), do: race(name, opts, dir)
      :ok = results |> svg(opts) |> Page.write(Path.join(__DIR__, "imitation.svg"), :write_curve)
      unless Enum.all?(results, &better?/1), do: System.halt(1)
    after
      File.rm_rf!(dir)
    end
  end

  defp race(name, opts, dir) do
    theirs = theirs(name, opts)
    say(name, "PyTorch", theirs)
    ours = ours(name, theirs.steps, opts, Path.join(dir, name))
    say(name, "Sconce", ours)
    %{name: name, ours: ours, theirs: theirs}
  end

  defp better?(%{ours: ours, theirs: theirs}),
    do: ours.nll <= theirs.nll and ours.seconds < theirs.seconds

  defp say(name, who, run) do
    IO.puts(
      "#{name}, #{who}: #{run.steps} steps, NLL #{Scale.number(run.nll, 3)}, changed " <>
        "#{Scale.number(run.changed, 3)}; trained #{round(run.trained)} s, in all " <>
        "#{round(run.seconds)} s, of processors #{round(run.cpu)} s; load before #{run.load}"
    )
  end

  defp theirs(name, opts) do
    home = System.get_env("PEERS_DIR", Path.expand("~/.cache/sconce-peers"))
    script = Path.join(__DIR__, "imitation.py")
    minutes = ["--gru-minutes", "--mlp-minutes"] |> Enum.flat_map(&[&1, "#{opts[:minutes]}"])
    args = [script, folder!("SCONCE_REPLAYS"), "--models", name] ++ @theirs ++ minutes

    {clock, printed} =
      timed(fn -> cmd!(Path.join(home, "venv/bin/python"), args ++ common(opts)) end)

    lines = for line <- String.split(printed, "\n"), line =~ ~s("model": "#{name}"), do: line
    {[result], curve} = Enum.split_with(lines, &(&1 =~ ~s("kind": "result")))

    Map.merge(clock, %{
      trained: number(result, "seconds"),
      steps: round(number(result, "steps")),
      # A policy without memory has only the first.
      nll: min(number(result, "nll"), number(result, "nll_carried")),
      changed: number(result, "nll_changed"),
      curve: for(line <- curve, do: {number(line, "seconds"), number(line, "validation")})
    })
  end

  # A number in a line of JSON; nil if the key is missing.
  defp number(line, key) do
    with [_, digits] <- Regex.run(~r/"#{key}": ([\d.]+)/, line),
         do: digits |> Float.parse() |> elem(0)
  end

  defp ours(name, steps, opts, dir) do
    replays = folder!("SCONCE_REPLAYS")
    [train, validation, out] = for part <- ~w(train validation run), do: Path.join(dir, part)
    last = Path.join(out, "last.safetensors")
    every = max(div(steps, @curve_points), 1)
    paths = ["--corpus", train, "--validation", validation, "--out", out]
    threads = ["--threads", "#{opts[:threads]}"]
    length = ["--steps", "#{steps}", "--validate-every", "#{every}"]

    {clock, _printed} =
      timed(fn ->
        mix!(["sconce.import", Path.join(replays, "train"), "--into", train])
        mix!(["sconce.import", Path.join(replays, "validation"), "--into", validation])

        mix!(
          ["sconce.train"] ++
            paths ++ length ++ @ours ++ Map.fetch!(@models, name) ++ common(opts)
        )

        mix!(["sconce.eval", last, "--corpus", validation, "--mode", "carry"] ++ threads)
      end)

    {:ok, report} = Trainer.report(out)
    %{steps: ^steps, stopped: :finished} = report
    {:ok, %{policy: scored}} = Trainer.evaluate(last, validation, mode: :carry)

    Map.merge(clock, %{
      trained: report.seconds,
      steps: steps,
      nll: scored.nll,
      changed: scored.nll_changed,
      curve: for(%{nll: nll, seconds: at} when nll != nil <- report.history, do: {at, nll})
    })
  end

  defp common(opts), do: ["--threads", "#{opts[:threads]}", "--seed", "#{opts[:seed]}"]
  defp mix!(args), do: cmd!("mix", args)

  defp cmd!(program, args) do
    case System.cmd(program, args, stderr_to_stdout: true) do
      {printed, 0} ->
        printed

      {printed, status} ->
        raise "#{program} #{Enum.join(args, " ")}: status #{status}\n#{printed}"
    end
  end

  defp timed(work) do
    load = "/proc/loadavg" |> File.read!() |> String.split() |> hd()
    before = cpu()
    {us, value} = :timer.tc(work)
    {%{seconds: us / 1.0e6, cpu: cpu() - before, load: load}, value}
  end

  # CPU seconds of finished child processes. They are children of the VM's process starter
  # (`proc_pid_stat(5)`, fields 16 and 17, in hundredths).
  defp cpu do
    [starter] =
      for pid <- children("#{System.pid()}"),
          File.read!("/proc/#{pid}/comm") =~ "erl_child",
          do: pid

    [_name, fields] = "/proc/#{starter}/stat" |> File.read!() |> String.split(") ", parts: 2)

    [user, system] =
      fields |> String.split() |> Enum.slice(13, 2) |> Enum.map(&String.to_integer/1)

    (user + system) / 100
  end

  defp children(pid), do: "/proc/#{pid}/task/#{pid}/children" |> File.read!() |> String.split()

  defp folder!(name) do
    System.get_env(name) || raise "#{name} is not set, see the top of this script"
  end

  defp svg(results, opts) do
    panels =
      for %{name: name} = run <- results do
        series =
          for who <- [:theirs, :ours], do: {:points, @colors[who], run[who].curve, nil, nil}

        ends = "#{Scale.number(run.ours.nll, 3)} beside #{Scale.number(run.theirs.nll, 3)}"
        %{title: "#{name}: ends at #{ends}", x: "seconds", series: series}
      end

    legend = [{"Sconce", @colors.ours, :points}, {"PyTorch", @colors.theirs, :points}]

    summary =
      "Validation NLL, nats per frame, over training time; equal steps, #{opts[:threads]} threads."

    Page.svg(
      "Imitation on real games, beside PyTorch",
      summary,
      legend,
      for(p <- panels, do: {190, [p]})
    )
  end
end

Imitation.main(System.argv())
