// Autoregressive decoding of one GGUF under llama.cpp, for the same run as ours.
// node benchmarks/llama_cpp.mjs MODEL.gguf NUM_TOKENS THREADS PROMPTS.json [STREAMS] -> JSON on standard output.
// STREAMS prompts are in progress at a time, each in a sequence of one shared batch. A sequence keeps the part of its last
// prompt that the next one begins with.
import {readFileSync} from "node:fs";
import {getLlama, LlamaCompletion} from "node-llama-cpp";

const [, , modelPath, numTokens, threads, promptsPath, numStreams = "1"] = process.argv;
const streams = Number(numStreams);
const llama = await getLlama({gpu: false, build: "never", maxThreads: Number(threads)});
const model = await llama.loadModel({modelPath});
const prompts = JSON.parse(readFileSync(promptsPath, "utf8"));
const context = await model.createContext({
    contextSize: 1024, sequences: streams, batchSize: 512, threads: Number(threads),
});
const results = [];
const began = performance.now();

async function answerNext() {
    const completion = new LlamaCompletion({contextSequence: context.getSequence()});
    while (prompts.length > 0) {
        const prompt = prompts.shift();
        let tokens = 0, first = 0;
        const start = performance.now();
        await completion.generateCompletion(prompt, {
            maxTokens: Number(numTokens), temperature: 0,
            onToken: (chunk) => { tokens += chunk.length; first ||= performance.now(); },
        });
        const end = performance.now();
        results.push({
            tokens, seconds: (end - start) / 1000, first_token_s: (first - start) / 1000, ended_s: (end - began) / 1000,
        });
    }
}

await Promise.all(Array.from({length: streams}, answerNext));
console.log(JSON.stringify(results));
process.exit(0);
