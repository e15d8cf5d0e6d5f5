"""Subjects and forms of everyday questions for distillation. Data only."""

from __future__ import annotations

from quicksilver.training.synthesis.banks import words

TOPICS = words(
    """
    photosynthesis, gravity, the water cycle, volcanoes, earthquakes, tides, rainbows, clouds, lightning, the
    seasons, the moon, the sun, stars, black holes, comets, the solar system, satellites, space travel,
    telescopes, magnets, electricity, batteries, solar panels, wind turbines, nuclear power, recycling, climate
    change, rainforests, deserts, coral reefs, glaciers, rivers, mountains, islands, soil, fossils, dinosaurs,
    evolution, DNA, cells, bacteria, viruses, vaccines, antibiotics, the human heart, the brain, lungs, bones,
    muscles, blood, the immune system, sleep, dreams, memory, stress, exercise, stretching, running, swimming,
    yoga, walking, healthy eating, vitamins, protein, sugar, salt, breakfast, bread, cheese, pasta, rice, soup,
    salad, chocolate, coffee, tea, honey, olive oil, spices, baking, grilling, gardening, composting,
    houseplants, roses, trees, mushrooms, bees, butterflies, ants, spiders, birds, owls, penguins, cats, dogs,
    horses, cows, elephants, whales, dolphins, sharks, octopuses, frogs, snakes, bats, wolves, the Roman Empire,
    ancient Egypt, the Middle Ages, the Renaissance, the industrial revolution, the printing press, the steam
    engine, the telephone, the internet, email, passwords, search engines, databases, algorithms, recursion,
    sorting, binary numbers, compilers, operating systems, open source software, version control, unit tests,
    debugging, code review, variables in programming, loops in programming, functions in programming, regular
    expressions, JSON, HTTP, APIs, encryption, machine learning, neural networks, robots, self-driving cars, 3D
    printing, cameras, photography, painting, sculpture, music, the piano, the guitar, jazz, opera, dance,
    theatre, films, novels, poetry, fairy tales, myths, grammar, spelling, learning a language, translation,
    handwriting, mathematics, fractions, percentages, probability, geometry, prime numbers, statistics, money,
    saving money, budgets, taxes, insurance, banks, inflation, trade, supply and demand, advertising, shopping,
    work, job interviews, meetings, teamwork, leadership, time management, homework, exams, reading, note
    taking, public speaking, writing letters, apologies, friendship, families, birthdays, weddings, holidays,
    travel, trains, aeroplanes, bicycles, cars, ships, bridges, skyscrapers, houses, kitchens, cleaning,
    laundry, sewing, knitting, woodworking, painting a room, camping, hiking, fishing, sailing, skiing,
    football, basketball, tennis, chess, board games, puzzles, video games, magic tricks, maps, compasses,
    flags, languages of the world, democracy, elections, laws, courts, the police, firefighters, doctors,
    nurses, teachers, farmers, engineers, artists, museums, libraries, newspapers, radio, television, weather
    forecasts, snow, rain, wind, fog, floods, drought, first aid, fire safety, road safety, online safety,
    kindness, honesty, patience, courage, creativity, happiness
    """
)

FORMS: tuple[str, ...] = (
    "What is {t}?",
    "What are three facts about {t}?",
    "Explain {t} in simple words.",
    "Explain {t} to a child.",
    "Why is {t} important?",
    "Tell me something interesting about {t}.",
    "Give me two tips about {t}.",
    "Write one sentence about {t}.",
    "Write two sentences about {t}.",
    "Write a short paragraph about {t}.",
    "Describe {t} briefly.",
    "What should a beginner know about {t}?",
    "Name one common mistake about {t}.",
    "How does {t} affect daily life?",
    "Write a short poem about {t}.",
    "Ask me a question about {t}.",
    "List four words related to {t}.",
    "Summarize what you know about {t} in one line.",
    "What is a good book title about {t}?",
    "What would you say to somebody who is afraid of {t}?",
    "Give an example that has to do with {t}.",
    "Is {t} something people can see every day?",
    "When did people first learn about {t}?",
    "Write a friendly message to a friend about {t}.",
)

CODE_TASKS = words(
    """
    adds two numbers, returns the sum of a list, returns the average of a list, finds the largest item of a
    list, finds the smallest item of a list, counts the words in a text, counts how often each word occurs,
    removes duplicates from a list, sorts a list of names by length, checks whether a word is a palindrome,
    checks whether a number is prime, lists all primes below n, converts Celsius to Fahrenheit, converts
    kilometres to miles, reads a text file and returns its lines, writes a list of lines to a file, merges two
    dictionaries, inverts a dictionary, flattens a list of lists, splits a list into chunks of size n, returns
    the intersection of two lists, counts vowels, capitalises every word, replaces spaces by underscores, checks
    whether two words are anagrams, computes the greatest common divisor, computes the factorial, returns the
    first n Fibonacci numbers, rolls a die, shuffles a list, returns the current date as text, computes the days
    between two dates, parses a CSV line, builds a URL from parts, validates an email address with a simple
    pattern, finds all numbers in a text, computes the area of a circle, computes the distance of two points,
    transposes a matrix, multiplies two matrices, does a binary search, implements a stack, implements a queue,
    prints a multiplication table, prints the numbers from 1 to 10, filters even numbers, squares every number
    of a list, zips two lists into a dictionary, returns the most common item, retries a function three times,
    measures how long a function takes, caches the results of a function, reads JSON from a string,
    pretty-prints JSON, removes punctuation from a text, truncates a text to n characters, counts lines of a
    file, joins strings with commas, checks whether a key is in a dictionary, swaps two variables
    """
)
