defmodule Sconce.Config.TemplateTest do
  use ExUnit.Case, async: true

  alias Sconce.Config
  alias Sconce.Config.Template

  @file_name Path.expand("../../../config/runtime.exs", __DIR__)

  test "config/runtime.exs is the table of settings" do
    assert File.read!(@file_name) == Template.text()
  end

  test "its lines, without the comment signs, set every setting to its default" do
    lines = Template.text() |> String.split("# config :sconce,\n") |> List.last()
    code = Regex.replace(~r/^# ? ?/m, lines, "")
    {settings, _binding} = Code.eval_string("[" <> code <> "]")
    assert settings == for({name, spec} <- Config.table(), do: {name, spec[:default]})
  end
end
