# Counts phrases that the house's English forbids in comments, docs, messages and pages. Called by bin/words.

defmodule Words do
  @moduledoc false

  # The count may fall and never rises: lower the ceiling when the count has fallen.
  @ceiling 20

  defp phrases, do: ~r/\b(of ours|so many|(?:is|are) told|at work|and so on|nobody)\b/i
  defp headed, do: ~r/(?:\A|[.!?:] +)(?:Who|What|Nobody)\b[^.?!]*[.!](?:\s|\z)/
  defp continues, do: ~r/\A(?:(?:And|Or|Also|But) |[a-z][a-z]* [a-z])/
  defp cut, do: ~r/(?:[,;]|[a-z] [a-z]+)\z/

  # A rule is a name, the kinds of text that it reads, and a pattern.
  # Not attributes: since OTP 28 a compiled expression cannot be kept in one.
  defp rules, do: [
    {"phrase", [:comment, :doc, :page, :code], phrases()},
    {"headed by who, what or nobody", [:comment, :doc, :page], headed()},
    {"continues another sentence", [:doc], continues()},
    {"has no end", [:doc], cut()}
  ]

  @sources ~w(.rs .cu .cuh .ex .exs .md .livemd .py .toml)
  # The rules themselves, their description, and texts that others wrote.
  @others ~w(tools/words.exs LICENSE)

  def run(args) do
    {switches, prefixes} = OptionParser.parse!(args, strict: [list: :boolean])

    found =
      for path <- files(prefixes),
          {kind, line, text} <- path |> File.read!() |> units(Path.extname(path)),
          {rule, kinds, pattern} <- rules(),
          kind in kinds,
          text =~ pattern,
          do: {path, line, rule, text}

    if switches[:list], do: Enum.each(found, &show/1)
    report(found, prefixes)
  end

  defp files(prefixes) do
    {paths, 0} = System.cmd("git", ["ls-files", "--" | prefixes])
    for path <- String.split(paths, "\n", trim: true), path not in @others, source?(path), do: path
  end

  defp source?(path), do: Path.extname(path) in @sources or path =~ ~r{^(bin/|\.ci/)}

  defp show({path, line, rule, text}),
    do: IO.puts("#{path}:#{line}: #{rule}: #{String.slice(text, 0, 160)}")

  defp report(found, prefixes) do
    for {rule, count} <- Enum.frequencies_by(found, &elem(&1, 2)), do: IO.puts("#{count}  #{rule}")
    IO.puts("#{length(found)} of at most #{@ceiling}")

    if prefixes == [] and length(found) > @ceiling do
      IO.puts("Too many: bin/words --list shows each.")
      System.halt(1)
    end
  end

  # Units of text, {kind, line, text}: a block of comments is one, a paragraph of a page, a line of code.
  defp units(source, extension) do
    source
    |> String.split("\n")
    |> Enum.with_index(1)
    |> Enum.map_reduce(:code, &line(&1, &2, extension))
    |> elem(0)
    |> Enum.chunk_by(fn {kind, key, _line, _text} -> {kind, key} end)
    |> Enum.map(&unit/1)
  end

  defp unit([{kind, _key, line, _text} | _] = lines),
    do: {kind, line, Enum.map_join(lines, " ", &String.trim(elem(&1, 3)))}

  # Pages: paragraphs outside of fences.
  defp line({text, n}, state, page) when page in [".md", ".livemd"] do
    fence? = String.starts_with?(String.trim(text), "```")
    next = if fence?, do: flip(state), else: state
    kind = if fence? or state == :fence, do: :fence, else: :page
    {paragraph(kind, n, text), next}
  end

  defp line({text, n}, state, extension) when extension in [".ex", ".exs"] do
    cond do
      state == :doc and text =~ ~r/^\s*"""/ -> {{:code, n, n, ""}, :code}
      state == :doc -> {paragraph(:page, n, text), :doc}
      text =~ ~r/@(module|type)?doc\s+(~S)?"""/ -> {{:code, n, n, ""}, :doc}
      match = Regex.run(~r/@(?:module|type|short)?doc\s+"(.*)"/, text) -> {{:page, n, n, Enum.at(match, 1)}, :code}
      match = Regex.run(~r/^\s*#\s(.*)/, text) -> {{:comment, :block, n, Enum.at(match, 1)}, :code}
      true -> {{:code, n, n, text}, :code}
    end
  end

  defp line({text, n}, state, extension) when extension in [".rs", ".cu", ".cuh"] do
    cond do
      match = Regex.run(~r{^\s*//[/!]( .*)?$}, text) ->
        text = Enum.at(match, 1, "")
        fence? = String.starts_with?(String.trim(text), "```")
        next = if fence?, do: flip(state), else: state
        kind = if fence? or state == :fence, do: :fence, else: :doc
        {paragraph(kind, n, text), next}

      match = Regex.run(~r{^\s*// (.*)$}, text) ->
        {{:comment, :block, n, Enum.at(match, 1)}, :code}

      true ->
        {{:code, n, n, text}, :code}
    end
  end

  defp line({text, n}, state, _other) do
    case Regex.run(~r/^\s*# (.*)/, text) do
      [_, comment] -> {{:comment, :block, n, comment}, state}
      nil -> {{:code, n, n, text}, state}
    end
  end

  defp flip(:fence), do: :code
  defp flip(_state), do: :fence

  # Paragraphs, items, rows and headings are units of their own.
  defp paragraph(kind, n, text) do
    own? = String.trim(text) == "" or text =~ ~r/^\s*([|#*-]|\d+\.)/
    # The second line of an item belongs to it: it may begin with a small letter.
    within? = own? or text =~ ~r/^\s{3}/
    key = if own?, do: n, else: :block
    {if(kind == :doc and within?, do: :page, else: kind), key, n, text}
  end
end

Words.run(System.argv())
