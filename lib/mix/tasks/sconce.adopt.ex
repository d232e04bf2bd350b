defmodule Mix.Tasks.Sconce.Adopt do
  alias Sconce.{Compat, Corpus, Figures, Files, Policy, Session, Switches, Trainer}
  alias Sconce.Trainer.{Progress, Report}

  @own [
    out: [type: :path, doc: "Folder of the policy, the report and the settings, required."],
    answers: [
      type: :path,
      doc: "File of recorded logits to compare with, see `Sconce.Compat.compare/2`."
    ],
    corpus: [type: :path, doc: "Folder of a corpus whose games the policy plays."],
    replays: [
      type: :path,
      doc: "Folder of replays whose games the policy plays; they are imported into `--out`."
    ],
    config: [
      type: :path,
      doc: "Export whose config describes a file of parameters alone."
    ]
  ]
  @schema @own ++ Keyword.drop(Compat.import_options(), [:config, :device])

  @shortdoc "Imports a policy of ExPhil and says what it does"

  @moduledoc """
  Imports a policy of ExPhil, compares it with recorded logits, lets it play
  recorded games, measures a decision, and writes the policy.

      $ mix sconce.adopt fox_policy.bin --out fox
      $ mix sconce.adopt fox_policy.bin --out fox --replays games \\
          --answers fox_logits.safetensors

  The folder of `--out` gets `policy.safetensors`, `report.txt`, and `session.exs`,
  a script that opens a session as ExPhil plays. See `Sconce.Compat`.

  #{Switches.docs(@schema)}
  """

  use Mix.Task

  @requirements ["app.config"]

  @checkpoint "policy.safetensors"
  # Logits that differ by more of the largest one are those of another policy.
  @far 1.0e-3

  @impl true
  def run(args), do: Switches.help?(args, __MODULE__) || adopt(args)

  defp adopt(args) do
    {file, opts} = parse!(args)
    out = opts[:out]

    with {:ok, policy, notes} <- Policy.import(file, imported(opts)),
         :ok <- made(out),
         {:ok, info} <- Policy.info(policy),
         window = info.notes["window_size"],
         {:ok, answers, verdict} <- answers(policy, opts[:answers]),
         {:ok, cost} <- cost(policy, window),
         {:ok, games} <- written(policy, info.notes, &games(&1, window, opts), out) do
      report = [
        "#{file}\n  #{inspect(policy)}\n",
        section("assumed", notes),
        answers,
        games,
        section("a decision", cost)
      ]

      text = report |> List.flatten() |> Enum.join("\n") |> Kernel.<>("\n")
      Mix.shell().info(text)

      with :ok <- Files.write(Path.join(out, "report.txt"), text, :adopt),
           :ok <- Files.write(Path.join(out, "session.exs"), session(window), :adopt) do
        Mix.shell().info(
          "#{Path.join(out, @checkpoint)}, report.txt and session.exs are in #{out}"
        )

        if verdict == :far,
          do: Mix.raise("the logits are not those of #{opts[:answers]}, see above")
      else
        {:error, error} -> Switches.fail!(error, @schema)
      end
    else
      {:error, error} -> Switches.fail!(error, @schema)
    end
  end

  # A policy that was adopted before stays until `work`, which gets the file of the new one, has succeeded.
  defp written(policy, notes, work, out) do
    new = Path.join(out, "adopting-" <> @checkpoint)

    with :ok <- Policy.save(policy, new, notes: notes), {:ok, done} <- work.(new) do
      moved(new, Path.join(out, @checkpoint))
      {:ok, done}
    end
  after
    _ = File.rm(Path.join(out, "adopting-" <> @checkpoint))
  end

  defp moved(from, to) do
    with {:error, reason} <- File.rename(from, to),
         do: Mix.raise("#{to}: #{:file.format_error(reason)}")
  end

  defp parse!(args) do
    case Switches.parse!(args, @schema) do
      {opts, [file]} -> {file, Keyword.put(opts, :out, Switches.needed!(opts, :out))}
      {_opts, []} -> raise ArgumentError, "which file? mix sconce.adopt FILE --out FOLDER"
      {_opts, [_file, other | _]} -> raise ArgumentError, "unknown argument #{other}"
    end
  rescue
    error in ArgumentError -> Switches.fail!(error, @schema)
  end

  defp imported(opts), do: Keyword.take(opts, [:from, :config, :initial_state, :trust])

  defp made(out) do
    case File.mkdir_p(out) do
      :ok -> :ok
      {:error, reason} -> Mix.raise("#{out}: #{:file.format_error(reason)}")
    end
  end

  defp section(title, lines), do: ["#{title}" | Enum.map(lines, &"  #{&1}")] ++ [""]

  defp answers(_policy, nil), do: {:ok, [], :none}

  defp answers(policy, path) do
    with {:ok, %{windows: windows, frames: frames, heads: heads}} <- Compat.compare(policy, path) do
      lines =
        for %{head: head, difference: difference, most: most} <- heads do
          "#{String.pad_trailing(head, 9)} #{difference} of at most #{Float.round(most, 2)}"
        end

      title =
        "largest differences of logits, #{Figures.counted(windows, "window")} of #{Figures.counted(frames, "frame")}"

      far? = Enum.any?(heads, &(&1.difference > @far * max(1, &1.most)))
      {:ok, section(title, lines), if(far?, do: :far, else: :near)}
    end
  end

  defp games(checkpoint, window, opts) do
    with {:ok, corpus} when corpus != nil <- corpus(opts),
         options = [mode: :window, window_size: window, progress: Progress.printer()],
         {:ok, report} <- Trainer.evaluate(checkpoint, corpus, options) do
      skipped =
        for %{file: file, reason: reason} <- (corpus.report || %{skipped: []}).skipped,
            do: "skipped, #{reason}: #{file}"

      title = "recorded games, windows of #{Figures.counted(window, "frame")}"
      {:ok, [title, Report.format(report), skipped, ""]}
    else
      {:ok, nil} -> {:ok, []}
      {:error, error} -> {:error, error}
    end
  end

  defp corpus(opts) do
    into = Path.join(opts[:out], "corpus")

    case {opts[:corpus], opts[:replays]} do
      {nil, nil} -> {:ok, nil}
      {nil, replays} -> imported(replays, into)
      {corpus, nil} -> Corpus.open(corpus)
      {_corpus, _replays} -> Mix.raise("--corpus and --replays exclude each other")
    end
  end

  # A corpus grows with each import, and games of an adoption before would be measured, too.
  defp imported(replays, into) do
    with {:ok, %{report: report, info: info} = corpus} <- Corpus.import(replays, into: into) do
      others = info.games - report.added - report.known - report.adopted

      if others > 0,
        do:
          Mix.raise(
            "#{into} has #{Figures.counted(others, "game")} beside those of #{replays}: delete this folder"
          ),
        else: {:ok, corpus}
    end
  end

  # Sconce measures a decision when it opens a session.
  defp cost(policy, window) do
    with {:ok, session} <- Session.open(policy, mode: :window, window_size: window) do
      :ok = Session.close(session)
      window = "#{round(session.window_us)} us in mode :window, as ExPhil decides"
      {:ok, [window | carried(policy)]}
    end
  end

  # A backbone that reads whole windows has no such mode.
  defp carried(policy) do
    case Session.open(policy, mode: :carry) do
      {:ok, session} ->
        :ok = Session.close(session)
        ["#{Float.round(session.step_us, 1)} us in mode :carry"]

      {:error, _window_only} ->
        []
    end
  end

  defp session(window) do
    """
    # Plays the policy as ExPhil does: each decision reads the last #{window} frames.
    {:ok, policy} = Sconce.Policy.load(Path.join(__DIR__, #{inspect(@checkpoint)}))
    {:ok, session} = Sconce.Session.open(policy, mode: :window, window_size: #{window})
    IO.inspect(session)

    # Once a frame, with a `Sconce.Frame` of the game:
    # {:ok, action} = Sconce.Session.act(session, frame)
    {:ok, session}
    """
  end
end
