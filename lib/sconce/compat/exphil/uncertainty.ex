defmodule Sconce.Compat.ExPhil.Uncertainty do
  @moduledoc false
  # Appends the confidence of decisions to a file, a line of JSON each, as ExPhil's agent does.

  alias Sconce.Error

  require Logger

  # Lines of one write: a process that is killed loses one second of a game at most.
  @lines 60
  @parts [:overall, :buttons, :main, :c, :shoulder]

  @enforce_keys [:path]
  defstruct [:path, lines: [], count: 0]

  @type t :: %__MODULE__{path: Path.t(), lines: iodata, count: non_neg_integer}

  @doc "Opens the file of a path, or nil for nil. An error names the path."
  @spec open(Path.t() | nil) :: {:ok, t | nil} | {:error, Error.t()}
  def open(nil), do: {:ok, nil}

  def open(path) do
    with :ok <- File.mkdir_p(Path.dirname(path)),
         :ok <- File.write(path, "", [:append]) do
      {:ok, %__MODULE__{path: path}}
    else
      {:error, reason} ->
        details = %{path: path, reason: reason |> :file.format_error() |> to_string()}
        {:error, %Error{kind: :io, op: :start_link, details: details}}
    end
  end

  @doc "Adds a decision."
  @spec add(t | nil, integer | nil, map) :: t | nil
  def add(nil, _frame, _confidence), do: nil

  def add(%__MODULE__{lines: lines, count: count} = log, frame, confidence) do
    log = %{log | lines: [lines, line(frame, confidence)], count: count + 1}
    if log.count >= @lines, do: flush(log), else: log
  end

  defp line(frame, confidence) do
    frame = if is_integer(frame), do: frame, else: "null"
    parts = for part <- @parts, do: ~s(,"#{part}":#{confidence[part]})
    [~s({"f":#{frame}), parts, "}\n"]
  end

  @doc "Writes the lines that were added. A file that refuses them is logged, and the lines are dropped."
  @spec flush(t | nil) :: t | nil
  def flush(nil), do: nil
  def flush(%__MODULE__{count: 0} = log), do: log

  def flush(%__MODULE__{path: path, lines: lines} = log) do
    with {:error, reason} <- File.write(path, lines, [:append]),
         do: Logger.warning("#{path} lost #{log.count} lines: #{:file.format_error(reason)}")

    %{log | lines: [], count: 0}
  end
end
