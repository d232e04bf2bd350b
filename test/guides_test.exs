defmodule Sconce.GuidesTest do
  use ExUnit.Case, async: true

  @guides Path.wildcard(Path.expand("../guides/*.md", __DIR__))

  for guide <- @guides do
    test "what #{Path.basename(guide)} does, it does" do
      blocks =
        ~r/```elixir\n(.*?)```/s
        |> Regex.scan(File.read!(unquote(guide)), capture: :all_but_first)
        |> List.flatten()

      assert blocks != []
      Enum.reduce(blocks, [], &follow/2)
    end
  end

  # A value that a block says is the one that it has.
  defp follow(block, binding) do
    {value, binding} = Code.eval_string(block, binding)

    with [said] <- Regex.run(~r/^#=> (.*)$/m, block, capture: :all_but_first),
         do: assert(inspect(value) == said)

    binding
  end
end
