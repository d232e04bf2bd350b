defmodule Sconce.GuidesTest do
  # Cells work in folders beside them: the working directory is that of the VM.
  use ExUnit.Case, async: false

  alias Sconce.Native
  import Sconce.Test.Scratch

  @root Path.expand("..", __DIR__)
  @guides Path.wildcard(Path.join(@root, "guides/*.livemd"))

  setup do
    dir = tmp_dir!("guides")
    here = File.cwd!()
    File.cd!(dir)
    # Numbers in the names of temporary files are unique in one VM only.
    temporary = System.get_env("TMPDIR")
    System.put_env("TMPDIR", dir)

    on_exit(fn ->
      File.cd!(here)
      if temporary, do: System.put_env("TMPDIR", temporary), else: System.delete_env("TMPDIR")
    end)

    {:ok, dir: dir}
  end

  test "there are guides" do
    assert length(@guides) >= 8
  end

  for guide <- @guides do
    @tag timeout: 120_000
    test "every cell of #{Path.basename(guide)} runs, and has the value that it shows", %{
      dir: dir
    } do
      if unquote(guide) =~ ~r"(melee|bot)\.livemd", do: replays(Path.join(dir, "replays"))
      [install | cells] = cells(File.read!(unquote(guide)))
      assert install =~ "Mix.install([{:sconce, path: "
      ExUnit.CaptureIO.capture_io(fn -> Enum.reduce(cells, [], &run/2) end)
    end
  end

  # Synthetic games replace the reader's own replays.
  defp replays(dir) do
    :ok = Native.corpus_fixtures(Path.join(dir, "all"))

    for {name, part} <-
          Enum.zip(Path.wildcard(dir <> "/all/valid*.slp"), Stream.cycle(~w(train validation))) do
      File.mkdir_p!(Path.join(dir, part))
      File.rename!(name, Path.join([dir, part, Path.basename(name)]))
    end
  end

  defp cells(text) do
    ~r/^```elixir\n(.*?)^```/ms
    |> Regex.scan(text, capture: :all_but_first)
    |> List.flatten()
  end

  defp run(cell, binding) do
    {value, binding} = Code.eval_string(cell, binding)

    with [shown] <- Regex.run(~r/^#=> (.*)$/m, cell, capture: :all_but_first),
         do: assert(inspect(value, custom_options: [sort_maps: true]) == shown)

    binding
  end

  test "a patch of a guide fits the file that it changes" do
    patches =
      for guide <- @guides,
          [file, patch] <-
            Regex.scan(
              ~r/^```diff\n--- a[^\n]*\n\+\+\+ b\/([^\n]*)\n(.*?)^```/ms,
              File.read!(guide),
              capture: :all_but_first
            ),
          do: {file, patch}

    assert length(patches) >= 6

    for {file, patch} <- patches,
        [_sign, line] <- Regex.scan(~r/^([ -])(.*)$/m, patch, capture: :all_but_first) do
      source = File.read!(Path.join(@root, file))
      assert source =~ "\n" <> line <> "\n", "#{file} has no line #{line}"
    end
  end
end
