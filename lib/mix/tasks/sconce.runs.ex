defmodule Mix.Tasks.Sconce.Runs do
  alias Sconce.{Switches, Text}
  alias Sconce.Monitor.{Folder, Snapshot, View, Watch}

  @schema [dir: [type: :path, doc: "Folder of the files, see `Sconce.Monitor`."]]

  @shortdoc "Lists, stops and follows runs of this machine"

  @moduledoc """
  Lists the runs of this user on this machine, running ones and the latest that
  have ended, stops one, or prints its figures until it ends.

      $ mix sconce.runs
      $ mix sconce.runs stop 3f2a91c0
      $ mix sconce.runs tail 3f2a91c0

  A run that is stopped saves its state, as by `Sconce.Trainer.stop/1`, also one
  that is a part of an app; it notices within about a second. `mix sconce.monitor`
  draws runs.

  #{Switches.docs(@schema)}
  """

  use Mix.Task

  @requirements ["app.config"]
  @usage "usage: mix sconce.runs [list | stop ID | tail ID] [--dir DIR]"

  # Milliseconds between two readings, and for which `stop` waits for the end of a run.
  @interval_ms 1_000
  @patience_ms 60_000

  @impl true
  def run(args), do: Switches.help?(args, __MODULE__) || args |> parse!() |> act()

  defp parse!(args) do
    {opts, rest} = Switches.parse!(args, @schema)
    {opts[:dir] || Folder.path(), rest}
  rescue
    error in ArgumentError -> Mix.raise("#{Exception.message(error)}\n#{@usage}")
  end

  defp act({dir, rest}) when rest in [[], ["list"]], do: list(dir)
  defp act({dir, ["stop", id]}), do: dir |> run!(id) |> stop()
  defp act({dir, ["tail", id]}), do: dir |> run!(id) |> tail(nil)
  defp act(_other), do: Mix.raise(@usage)

  defp list(dir) do
    watch = dir |> Watch.new() |> Watch.read()
    if watch.error, do: Mix.raise(watch.error)
    runs = for path <- watch.order, watch.files[path].now.kind == :run, do: path
    only = %{watch | order: runs, files: Map.take(watch.files, runs)}
    view = %View{columns: 160, rows: 2 * length(runs) + 20, now_ms: System.os_time(:millisecond)}

    if runs == [] do
      Mix.shell().info("No run in #{dir}.")
    else
      only
      |> View.lines(nil, view)
      |> Enum.drop(2)
      |> Enum.take(length(runs) + 1)
      |> Enum.each(&Mix.shell().info(line_of(&1)))
    end
  end

  # Without the number of the row.
  defp line_of(row) do
    <<_number::binary-size(2), text::binary>> = IO.iodata_to_binary(row)
    String.trim_trailing(text)
  end

  defp run!(dir, id) do
    path = Path.join(dir, id <> ".run")

    id =~ ~r/\A[0-9a-f]{8}\z/ ||
      Mix.raise("#{id}: an id has eight digits of 0-9 and a-f; mix sconce.runs lists them")

    opened!(path)
  end

  defp opened!(path) do
    case Snapshot.open(path) do
      {:ok, run} -> run
      {:error, error} -> Mix.raise(Exception.message(error))
    end
  end

  defp stop(run) do
    case Snapshot.life(run) do
      life when life in [:running, :silent] ->
        File.write!(Folder.stop(run.path), "")
        Mix.shell().info("#{run.id} is asked to stop and to save its state.")
        ended(run, System.monotonic_time(:millisecond) + @patience_ms)

      life ->
        Mix.shell().info("#{run.id} does not run any more: #{life}.")
    end
  end

  defp ended(run, deadline) do
    Process.sleep(200)
    life = Snapshot.life(opened!(run.path))

    cond do
      life not in [:running, :silent] ->
        Mix.shell().info("#{run.id}: #{life}.")

      System.monotonic_time(:millisecond) < deadline ->
        ended(run, deadline)

      true ->
        _ = File.rm(Folder.stop(run.path))
        Mix.raise("#{run.id} still runs: a long step or a save takes its time")
    end
  end

  # Prints a line when the step or the note changes.
  defp tail(run, before) do
    now = {step(run), Snapshot.value(run, "note")}
    if now != before, do: Mix.shell().info(line(run))

    case Snapshot.life(run) do
      life when life in [:running, :silent] ->
        Process.sleep(@interval_ms)
        tail(opened!(run.path), now)

      life when life in [:done, :stopped] ->
        Mix.shell().info("#{run.id}: #{life}.")

      life ->
        why = Snapshot.value(run, "error") || "its process is gone"
        Mix.raise("#{run.id}: #{life}: #{Text.printable(why)}")
    end
  end

  defp step(run), do: Snapshot.value(run, "step.step") || Snapshot.value(run, "update.steps")

  defp line(run) do
    figures =
      for name <- ~w(step.loss validation.nll update.mean_return step.frames_per_second),
          value = Snapshot.value(run, name),
          do: "#{name} #{Sconce.Monitor.Graph.number(value)}"

    note = Snapshot.value(run, "note")
    note = if note in [nil, ""], do: [], else: [Text.printable(note, 200)]
    Enum.join(["step #{Sconce.Monitor.Graph.number(step(run))}" | figures ++ note], "  ")
  end
end
