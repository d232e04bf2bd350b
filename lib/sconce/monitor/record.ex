defmodule Sconce.Monitor.Record do
  @moduledoc false
  # Writes the figures of a watch to a file, a line for each watched file and interval.

  alias Sconce.Error
  alias Sconce.Monitor.{Json, Watch}
  alias Sconce.Monitor.Snapshot.Histogram

  @doc "Records until the file cannot be written, or what was watched alone has ended."
  @spec run(Watch.t(), Path.t(), non_neg_integer) :: :ok | {:error, Error.t()}
  def run(watch, path, interval_ms) do
    with {:ok, file} <- opened(path),
         do: lines(watch, path, file, header(watch, path), interval_ms)
  end

  defp opened(path) do
    case File.open(path, [:append, :binary]) do
      {:ok, file} -> {:ok, file}
      {:error, reason} -> failed(path, reason)
    end
  end

  # The columns of CSV: a new file begins with them.
  defp header(watch, path) do
    if Path.extname(path) == ".csv" do
      watch |> readings() |> Enum.flat_map(&Map.keys(&1.figures)) |> Enum.uniq() |> Enum.sort()
    end
  end

  defp lines(watch, path, file, columns, interval_ms) do
    head = if columns && File.stat!(path).size == 0, do: [csv(["time", "id", "life" | columns])]
    text = [head || [] | Enum.map(readings(watch), &line(&1, columns))]

    # `IO.binwrite/2` raises in newer versions of Elixir.
    with :ok <- :file.write(file, text), true <- File.exists?(path) || {:error, :enoent} do
      if over?(watch) do
        File.close(file)
      else
        Process.sleep(interval_ms)
        watch |> Watch.read() |> lines(path, file, columns, interval_ms)
      end
    else
      {:error, reason} -> failed(path, reason)
    end
  end

  defp over?(%Watch{only: nil}), do: false
  defp over?(%Watch{only: path, files: files}), do: files[path].life not in [:running, :silent]

  defp readings(watch) do
    for path <- watch.order, %{now: now} = file = watch.files[path] do
      %{id: now.id, life: file.life, time: System.os_time(:millisecond), figures: figures(now)}
    end
  end

  defp figures(now), do: now.slots |> Enum.flat_map(&figure/1) |> Map.new()

  defp figure(%{kind: kind, name: name, value: value}) when kind in [:counter, :gauge],
    do: [{name, value}]

  defp figure(%{kind: :histogram, name: name, value: histogram}) do
    [
      {name <> ".count", Histogram.count(histogram)},
      {name <> ".p50", Histogram.quantile(histogram, 0.5)},
      {name <> ".p99", Histogram.quantile(histogram, 0.99)}
    ]
  end

  defp figure(_curve_or_text), do: []

  defp line(reading, nil) do
    figures = {Enum.sort(reading.figures)}
    life = to_string(reading.life)

    whole = {[{"time", reading.time}, {"id", reading.id}, {"life", life}, {"figures", figures}]}

    [Json.encode(whole), "\n"]
  end

  defp line(reading, columns),
    do: csv([reading.time, reading.id, reading.life | Enum.map(columns, &reading.figures[&1])])

  defp csv(cells), do: [Enum.map_intersperse(cells, ",", &cell/1), "\n"]

  defp cell(nil), do: ""

  defp cell(value) do
    text = to_string(value)
    if text =~ ~r/[",\n\r]/, do: [?", String.replace(text, "\"", "\"\""), ?"], else: text
  end

  defp failed(path, reason) do
    details = %{path: path, reason: to_string(:file.format_error(reason))}
    {:error, %Error{kind: :io, op: :monitor, details: details}}
  end
end
