defmodule Sconce.Build.Cargo do
  @moduledoc """
  Runs cargo, prints its lines as they arrive, and parses rustc's diagnostics in them.

  A diagnostic is a block of lines: a headline (`error[E0308]: mismatched types`), the location
  (`  --> native/tensor/src/lib.rs:5:9`), the excerpt, and an empty line at the end. Headlines without
  a location are cargo's own, and are returned only if no other diagnostic explains why the build failed.
  """

  alias Mix.Task.Compiler.Diagnostic

  @line_bytes 65_536

  @doc "Runs cargo in `root` with environment `variables`. Returns its exit status and diagnostics."
  def run(cargo, args, root, variables \\ []) do
    color = if IO.ANSI.enabled?(), do: ~c"always", else: ~c"never"

    port =
      Port.open({:spawn_executable, cargo}, [
        :binary,
        :exit_status,
        :stderr_to_stdout,
        line: @line_bytes,
        args: args,
        cd: root,
        env: [
          {~c"CARGO_TERM_COLOR", color}
          | for({name, value} <- variables, do: {to_charlist(name), to_charlist(value)})
        ]
      ])

    {status, lines} = follow(port, "", [])
    {status, diagnostics(lines, root, status)}
  end

  @doc "Returns the diagnostics in cargo's output, in order and without repeats."
  def diagnostics(lines, root, status \\ 0) do
    {placed, bare} =
      lines
      |> Enum.map(&String.replace(&1, color(), ""))
      |> blocks()
      |> Enum.map(&diagnostic(&1, root))
      |> Enum.uniq()
      |> Enum.split_with(&(&1.position > 0))

    if status != 0 and not Enum.any?(placed, &error?/1),
      do: placed ++ Enum.filter(bare, &error?/1),
      else: placed
  end

  defp follow(port, partial, lines) do
    receive do
      {^port, {:data, {:noeol, part}}} ->
        follow(port, partial <> part, lines)

      {^port, {:data, {:eol, part}}} ->
        line = partial <> part
        IO.puts(:stderr, line)
        follow(port, "", [line | lines])

      {^port, {:exit_status, status}} ->
        {status, Enum.reverse(lines)}
    end
  end

  # The diagnostics as lists of lines: [[headline | rest], ...].
  defp blocks(lines) do
    lines
    |> Enum.chunk_while(nil, &chunk/2, &last_chunk/1)
    |> Enum.map(&Enum.reverse/1)
  end

  defp chunk(line, block) do
    cond do
      line =~ headline() -> if block, do: {:cont, block, [line]}, else: {:cont, [line]}
      block && line == "" -> {:cont, block, nil}
      block -> {:cont, [line | block]}
      true -> {:cont, nil}
    end
  end

  defp last_chunk(nil), do: {:cont, nil}
  defp last_chunk(block), do: {:cont, block, nil}

  defp diagnostic([headline | _] = block, root) do
    [_, severity, code, _text] = Regex.run(headline(), headline)
    {file, line, column} = place(block, root)

    %Diagnostic{
      compiler_name: "cargo",
      severity: String.to_existing_atom(severity),
      message: Enum.join(block, "\n"),
      file: file,
      position: line,
      details: %{code: code, column: column}
    }
  end

  defp place(block, root) do
    case Enum.find_value(block, &Regex.run(place(), &1)) do
      [_, path, line, column] ->
        {Path.expand(path, root), String.to_integer(line), String.to_integer(column)}

      nil ->
        {Path.join(root, "Cargo.toml"), 0, 0}
    end
  end

  # Functions, because since OTP 28 a module attribute cannot hold a compiled regex.
  defp headline, do: ~r/^(error|warning)(?:\[(\w+)\])?: (.+)$/
  defp place, do: ~r/^ *--> (.+):(\d+):(\d+)$/
  defp color, do: ~r/\e\[[0-9;]*m/

  defp error?(diagnostic), do: diagnostic.severity == :error
end
