// Autoregressive decoding of one GGUF under llama.cpp, for the same run as ours.
// node benchmarks/llama_cpp.mjs MODEL.gguf NUM_TOKENS THREADS PROMPTS.json -> JSON on standard output.
import {readFileSync} from "node:fs";
import {getLlama, LlamaCompletion} from "node-llama-cpp";

const [, , modelPath, numTokens, threads, promptsPath] = process.argv;
const llama = await getLlama({gpu: false, build: "never", maxThreads: Number(threads)});
const model = await llama.loadModel({modelPath});
const results = [];
for (const prompt of JSON.parse(readFileSync(promptsPath, "utf8"))) {
    const context = await model.createContext({contextSize: 1024, threads: Number(threads)});
    const completion = new LlamaCompletion({contextSequence: context.getSequence()});
    let tokens = 0, first = 0;
    const start = performance.now();
    await completion.generateCompletion(prompt, {
        maxTokens: Number(numTokens), temperature: 0,
        onToken: (chunk) => { tokens += chunk.length; first ||= performance.now(); },
    });
    results.push({tokens, seconds: (performance.now() - start) / 1000, first_token_s: (first - start) / 1000});
    await context.dispose();
}
console.log(JSON.stringify(results));
process.exit(0);
