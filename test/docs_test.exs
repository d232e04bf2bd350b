defmodule Sconce.DocsTest do
  use ExUnit.Case, async: true

  @root Path.expand("..", __DIR__)
  # Lines of the first paragraph of a moduledoc.
  @most_lines 3

  {:ok, modules} = :application.get_key(:sconce, :modules)

  @modules for module <- modules,
               not String.starts_with?(inspect(module), "Sconce.Test."),
               {:module, ^module} <- [Code.ensure_loaded(module)],
               # Protocol implementations have no documentation of their own.
               not function_exported?(module, :__impl__, 1),
               do: module

  test "modules are found" do
    assert length(@modules) > 50
    assert Sconce.Session in @modules
  end

  for module <- @modules do
    test "#{inspect(module)} has a moduledoc, and an example for each function" do
      {module_doc, functions} = docs(unquote(module))
      assert module_doc != :none, "write a moduledoc, or set it to false"

      if is_map(module_doc) do
        first = module_doc["en"] |> String.split("\n\n", parts: 2) |> hd()
        lines = first |> String.trim() |> String.split("\n") |> length()
        assert lines <= @most_lines, "the first paragraph of the moduledoc has #{lines} lines"

        without = for {name, doc} <- functions, not example?(name, doc, functions), do: name
        assert without == [], "no example: #{Enum.join(without, ", ")}"
      end
    end
  end

  defp docs(module) do
    {:docs_v1, _line, _language, _format, module_doc, _meta, docs} = Code.fetch_docs(module)

    functions =
      for {{kind, name, arity}, _line, _signature, doc, _meta} <- docs,
          kind in [:function, :macro],
          doc != :hidden,
          do: {"#{name}/#{arity}", doc}

    {module_doc, functions}
  end

  # `use GenServer` generates the documentation of `child_spec/1`.
  defp example?("child_spec/1", _doc, _functions), do: true

  # A doctest, a fence, an indented block, or the doctest of another function that calls this one.
  defp example?(name, %{"en" => text}, functions) do
    text =~ ~r/^ *iex>|^ *```|\n\n    \S/m or
      with [other] <-
             Regex.run(~r/`(\w+\/\d+)` has\s+an\s+example/, text, capture: :all_but_first),
           %{"en" => example} <- :proplists.get_value(other, functions) do
        [call, _arity] = String.split(name, "/")
        example =~ ".#{call}("
      else
        _ -> false
      end
  end

  defp example?(_name, _none, _functions), do: false

  test "groups of modules list every documented module exactly once" do
    listed = docs_config()[:groups_for_modules] |> Keyword.values() |> List.flatten()
    documented = for module <- @modules, match?({%{}, _}, docs(module)), do: module

    assert Enum.sort(documented -- listed) == []
    assert Enum.sort(listed -- documented) == []
  end

  test "every extra page exists, and every guide is an extra page" do
    extras = docs_config()[:extras]
    for extra <- extras, do: assert(File.regular?(Path.join(@root, extra)), extra)
    assert Enum.uniq(extras) == extras

    for guide <- Path.wildcard(Path.join(@root, "guides/*.{md,livemd}")),
        do: assert(Path.relative_to(guide, @root) in extras)
  end

  test "moduledocs link to extra pages that exist" do
    pages =
      for extra <- docs_config()[:extras], do: Path.basename(Path.rootname(extra)) <> ".html"

    for module <- @modules,
        {%{"en" => text}, _functions} <- [docs(module)],
        [_, page] <- Regex.scan(~r/\]\((\w+\.html)/, text),
        do:
          assert(
            String.downcase(page) in Enum.map(pages, &String.downcase/1),
            "#{inspect(module)}: #{page}"
          )
  end

  for page <- ["README.md", "SECURITY.md", "bench/README.md"] ++ ~w(guides/*.md guides/*.livemd),
      path <- Path.wildcard(Path.join(@root, page)),
      name = Path.relative_to(path, @root) do
    test "relative links and pictures of #{name} exist" do
      path = unquote(path)

      for link <- links(File.read!(path)) do
        target = link |> String.split("#") |> hd() |> Path.expand(Path.dirname(path))
        assert File.exists?(target), "#{unquote(name)} links to #{link}"
      end
    end
  end

  # Links to files: outside of fences, and neither to other sites nor within the page.
  defp links(text) do
    text = Regex.replace(~r/^```.*?^```/ms, text, "")
    markdown = Regex.scan(~r/\]\(<?([^)>\s]+)>?[^)]*\)/, text, capture: :all_but_first)
    html = Regex.scan(~r/\b(?:src|href)="([^"]+)"/, text, capture: :all_but_first)
    for [link] <- markdown ++ html, not (link =~ ~r/^([a-z]+:|#)/), do: link
  end

  defp docs_config, do: Sconce.MixProject.project()[:docs]
end
