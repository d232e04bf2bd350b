defmodule Sconce.Monitor.Terminal do
  @moduledoc false
  # The terminal of a live view: its size, its alternate screen, and keys without Enter. Everything is undone at the end,
  # also when the view fails.

  @enter "\e[?1049h\e[?25l"
  @leave "\e[?25h\e[?1049l"

  @doc "The terminal that the output goes to; nil if it goes elsewhere."
  @spec device() :: Path.t() | nil
  def device do
    # Programs that the VM starts have pipes and no controlling terminal, so they cannot tell; nor can `:io.columns/0` in
    # all versions of OTP.
    case File.read_link("/proc/#{System.pid()}/fd/1") do
      {:ok, "/dev/pts/" <> _ = device} -> device
      {:ok, "/dev/tty" <> _ = device} -> device
      {:ok, _file_or_pipe} -> nil
      {:error, _no_proc} -> if IO.ANSI.enabled?(), do: of_process()
    end
  end

  defp of_process do
    case sh("ps -o tty= -p #{System.pid()}") do
      {text, 0} -> with "/dev/" <> _ = device <- "/dev/" <> String.trim(text), do: device
      _unknown -> nil
    end
  end

  @doc "Columns and rows of a terminal; nil if it is gone."
  @spec size(Path.t()) :: {pos_integer, pos_integer} | nil
  def size(device) do
    with {text, 0} <- sh("stty size < #{device}"),
         [rows, columns] <- text |> String.split() |> Enum.map(&String.to_integer/1),
         true <- rows > 0 and columns > 0 do
      {columns, rows}
    else
      _no_terminal -> nil
    end
  end

  @doc """
  Runs `work` on the alternate screen. Keys arrive at the caller as `{:key, character}`, and as `{:key, :closed}` when
  there are no more.
  """
  @spec screen(Path.t(), (() -> result)) :: result when result: term
  def screen(device, work) do
    {saved, _status} = sh("stty -g < #{device}")
    _ = sh("stty -icanon -echo min 1 < #{device}")
    restore = fn -> restore(device, String.trim(saved)) end
    System.at_exit(fn _status -> restore.() end)
    IO.write(@enter)
    reader = keys(self())

    try do
      work.()
    after
      Process.exit(reader, :kill)
      restore.()
    end
  end

  defp restore(device, saved) do
    _ = if saved != "", do: sh("stty #{saved} < #{device}")
    IO.write(@leave)
  end

  defp keys(view) do
    spawn(fn ->
      Stream.repeatedly(fn -> IO.getn("", 1) end)
      |> Enum.find(fn
        <<key::utf8>> -> send(view, {:key, <<key::utf8>>}) == nil
        _end -> true
      end)

      send(view, {:key, :closed})
    end)
  end

  @doc "Draws lines in place of those before."
  @spec draw([iodata]) :: :ok
  def draw(lines), do: IO.write(["\e[H", Enum.intersperse(lines, "\e[K\r\n"), "\e[K\e[J"])

  # A terminal that is closed is an error of `sh`, too.
  defp sh(command) do
    System.cmd("sh", ["-c", command], stderr_to_stdout: true)
  rescue
    ErlangError -> {"", 127}
  end
end
