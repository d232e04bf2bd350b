defmodule Mix.Tasks.Sconce.Export do
  alias Sconce.{Onnx, Policy, Switches}

  @schema [out: [type: :path, doc: "File of the model, required."]] ++ Onnx.options()

  @shortdoc "Writes a policy as a model in ONNX"

  @moduledoc """
  Writes the policy of a checkpoint as a model in ONNX, and prints its inputs
  and outputs. See `Sconce.Onnx`.

      $ mix sconce.export run/best.safetensors --out policy.onnx
      $ mix sconce.export run/best.safetensors --out policy.onnx --form window

  #{Switches.docs(@schema)}
  """

  use Mix.Task

  @requirements ["app.config"]
  @usage "usage: mix sconce.export CHECKPOINT --out FILE [--form step|window]"

  @impl true
  def run(args), do: Switches.help?(args, __MODULE__) || export(args)

  defp export(args) do
    {checkpoint, out, opts} = parse!(args)

    with {:ok, policy} <- Policy.load(checkpoint),
         {:ok, model} <- Onnx.export(policy, out, opts) do
      for {title, ports} <- [inputs: model.inputs, outputs: model.outputs], port <- ports do
        title = title |> to_string() |> String.pad_trailing(8)
        Mix.shell().info("#{title} #{port.name} #{port.type} #{inspect(port.shape)}")
      end
    else
      {:error, error} -> Switches.fail!(error, @schema)
    end
  end

  defp parse!(args) do
    case Switches.parse!(args, @schema) do
      {opts, [checkpoint]} -> with_out!(checkpoint, Keyword.pop(opts, :out))
      _other -> Mix.raise(@usage)
    end
  rescue
    error in ArgumentError -> Mix.raise("#{Exception.message(error)}\n#{@usage}")
  end

  defp with_out!(_checkpoint, {nil, _opts}), do: raise(ArgumentError, "--out is required")
  defp with_out!(checkpoint, {out, opts}), do: {checkpoint, out, opts}
end
