defmodule Mix.Tasks.Sconce.Adopt do
  alias Sconce.{Compat, Corpus, Files, Policy, Session, Switches, Trainer}
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

  @impl true
  def run(args), do: Switches.help?(args, __MODULE__) || adopt(args)

  defp adopt(args) do
    {file, opts} = parse!(args)
    out = opts[:out]

    with {:ok, policy, notes} <- Policy.import(file, imported(opts)),
         :ok <- made(out),
         checkpoint = Path.join(out, "policy.safetensors"),
         {:ok, info} <- Policy.info(policy),
         :ok <- Policy.save(policy, checkpoint, notes: info.notes),
         {:ok, answers} <- answers(policy, opts[:answers]),
         {:ok, games} <- games(checkpoint, info.notes["window_size"], opts),
         {:ok, cost} <- cost(policy, info.notes["window_size"]) do
      report = [
        "#{file}\n  #{inspect(policy)}\n",
        section("assumed", notes),
        answers,
        games,
        section("a decision", cost)
      ]

      text = report |> List.flatten() |> Enum.join("\n") |> Kernel.<>("\n")
      Mix.shell().info(text)
      script = session(checkpoint, info.notes["window_size"])

      with :ok <- Files.write(Path.join(out, "report.txt"), text, :adopt),
           :ok <- Files.write(Path.join(out, "session.exs"), script, :adopt),
           do: Mix.shell().info("#{checkpoint}, report.txt and session.exs are in #{out}"),
           else: ({:error, error} -> Switches.fail!(error, @schema))
    else
      {:error, error} -> Switches.fail!(error, @schema)
    end
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

  defp answers(_policy, nil), do: {:ok, []}

  defp answers(policy, path) do
    with {:ok, %{windows: windows, frames: frames, heads: heads}} <- Compat.compare(policy, path) do
      lines =
        for %{head: head, difference: difference, most: most} <- heads do
          "#{String.pad_trailing(head, 9)} #{difference} of at most #{Float.round(most, 2)}"
        end

      title = "largest differences of logits, #{windows} windows of #{frames} frames"
      {:ok, section(title, lines)}
    end
  end

  defp games(checkpoint, window, opts) do
    with {:ok, corpus} when corpus != nil <- corpus(opts),
         options = [mode: :window, window_size: window, progress: Progress.printer()],
         {:ok, report} <- Trainer.evaluate(checkpoint, corpus, options) do
      {:ok, ["recorded games, windows of #{window} frames", Report.format(report), ""]}
    else
      {:ok, nil} -> {:ok, []}
      {:error, error} -> {:error, error}
    end
  end

  defp corpus(opts) do
    into = Path.join(opts[:out], "corpus")

    case {opts[:corpus], opts[:replays]} do
      {nil, nil} -> {:ok, nil}
      {nil, replays} -> Corpus.import(replays, into: into)
      {corpus, nil} -> Corpus.open(corpus)
      {_corpus, _replays} -> Mix.raise("--corpus and --replays exclude each other")
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

  defp session(checkpoint, window) do
    """
    # Plays the policy as ExPhil does: each decision reads the last #{window} frames.
    {:ok, policy} = Sconce.Policy.load(Path.join(__DIR__, #{inspect(Path.basename(checkpoint))}))
    {:ok, session} = Sconce.Session.open(policy, mode: :window, window_size: #{window})

    # Once a frame, with a `Sconce.Frame` of the game:
    # {:ok, action} = Sconce.Session.act(session, frame)
    """
  end
end
