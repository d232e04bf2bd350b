defmodule Sconce.Terminal do
  @moduledoc false
  # The terminal of a task: its size, its keys without an echo, and its alternate screen, which is left again whatever
  # ends the work.

  @enter "\e[?1049h\e[?25l\e[?7l\e[2J"
  @leave "\e[?7h\e[?25h\e[?1049l"

  @doc "Returns whether both input and output are a terminal."
  @spec interactive?() :: boolean
  def interactive?, do: IO.ANSI.enabled?() and size() != nil and device() != nil

  @doc "Returns whether its locale is UTF-8."
  @spec unicode?() :: boolean
  def unicode? do
    locale =
      for name <- ~w(LC_ALL LC_CTYPE LANG), text = System.get_env(name), text != "", do: text

    locale |> List.first("") |> String.downcase() =~ ~r/utf-?8/
  end

  @doc "Returns columns and rows, or nil without a terminal."
  @spec size() :: {pos_integer, pos_integer} | nil
  def size do
    with {:ok, columns} <- :io.columns(),
         {:ok, rows} <- :io.rows(),
         do: {columns, rows},
         else: (_none -> nil)
  end

  # The device file of the input. A program that this VM starts has no controlling terminal, so /dev/tty is none.
  defp device do
    case File.read_link("/proc/self/fd/0") do
      {:ok, "/dev/" <> name = path} when name != "null" -> path
      {:error, :enoent} -> "/dev/tty"
      _other -> nil
    end
  end

  @doc """
  Runs `work` on the alternate screen. Each key arrives as the message `{:key, key}`, Ctrl-C as `"\\x03"`. SIGTERM
  restores the terminal and ends the VM.
  """
  @spec live((() -> result)) :: result when result: term
  def live(work) do
    keys("-icanon -isig -echo min 1", fn reset ->
      restore = fn ->
        write(@leave)
        reset.()
      end

      trap = System.trap_signal(:sigterm, fn -> ended(restore) end)
      write(@enter)

      try do
        work.()
      after
        with {:ok, id} <- trap, do: System.untrap_signal(:sigterm, id)
        write(@leave)
      end
    end)
  end

  defp ended(restore) do
    restore.()
    System.halt(143)
  end

  @doc "Runs `work` while each key arrives at once, as the message `{:key, key}`, without an echo. Ctrl-C stays the VM's."
  @spec keys((() -> result)) :: result when result: term
  def keys(work), do: keys("-icanon -echo min 1", fn _reset -> work.() end)

  # If the terminal cannot be set, a key arrives with the end of its line.
  defp keys(mode, work) do
    before = stty("-g")
    if before, do: stty(mode)
    me = self()
    reader = spawn(fn -> read(me) end)
    reset = fn -> if before, do: stty(before) end

    try do
      work.(reset)
    after
      Process.exit(reader, :kill)
      reset.()
    end
  end

  @doc "Draws lines over the whole screen. Returns `:closed` if the terminal is gone."
  @spec draw([iodata]) :: :ok | :closed
  def draw(lines) do
    text = for {line, row} <- Enum.with_index(lines, 1), do: ["\e[#{row};1H", line]
    write(text)
  end

  defp write(text) do
    IO.write(text)
  rescue
    ErlangError -> :closed
  end

  defp read(receiver) do
    case IO.getn("", 1) do
      key when is_binary(key) ->
        send(receiver, {:key, key})
        read(receiver)

      _end_of_input ->
        send(receiver, {:key, :closed})
    end
  end

  defp stty(args) do
    # Device files have no character that a shell reads as its own.
    case System.cmd("sh", ["-c", "stty #{args} < #{device()}"], stderr_to_stdout: true) do
      {output, 0} -> String.trim(output)
      _no_terminal -> nil
    end
  end
end
