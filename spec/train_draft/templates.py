"""Templates of prompts: instructions, requests for JSON, and questions about given texts. `questions.py` has more.

They were written for this purpose, and come from no data set.
"""

from __future__ import annotations

from dataclasses import dataclass

GENERAL = (
    "Explain {topic} to {audience}.",
    "Write a short story about {topic}.",
    "What are the most important facts about {topic}?",
    "List {n} interesting things about {topic}.",
    "Write a {style} email to {person} about {topic}.",
    "Give me {n} tips for {topic}.",
    "Compare {topic} with {other_topic}.",
    "Write a {style} paragraph about {topic} for {audience}.",
    "Why does {topic} matter today?",
    "Summarize what is known about {topic} in {n} sentences.",
    "I want to learn about {topic}. Where should I start?",
    "Write a poem about {topic} in a {style} tone.",
    "What are the advantages and disadvantages of {topic}?",
    "Create an outline for an article on {topic}.",
    "Translate into {language}: The lecture about {topic} begins at {hour} o'clock in {city}.",
    "Write a dialogue between {person} and {other_person} about {topic}.",
    "Write a Python function that takes a list of numbers and {code}.",
    "{person} has {n} apples and buys {m} more, then gives away {k}. How many are left? Explain step by step.",
    "Plan a {n}-day trip to {city} for {audience}.",
    "Write a product description for a {product} in a {style} style.",
    "Draft a job advertisement for a {job} at {company} in {city}.",
    "What questions should I ask in an interview for a position as a {job}?",
    "Rewrite this more politely: Send me the report on {topic} by {month} {day} or we have a problem.",
    "Correct the grammar: He don't knows nothing about {topic} and they was asking {person} for helps.",
    "What could go wrong when a {job} starts to work with {topic}?",
    "Give {n} headlines for a newspaper article about {topic} in {city}.",
    "Imagine that you are a {job}. Describe a day in {city}.",
    "Write a {style} review of a {product} that {opinion}.",
    "What is the difference between a {job} and a {other_job}?",
    "Write a speech of one minute about {topic} for {audience}.",
    "How would you teach {topic} in a school?",
    "A train leaves {city} at {hour}:00 and travels {m} km at {speed} km/h. When does it arrive?",
    "Write three multiple-choice questions about {topic} with answers.",
    "Answer briefly: what is {topic}?",
    "Make a table that compares {topic} and {other_topic}.",
    "Write a SQL query that returns all customers in {city} who bought a {product} after {month} {day}.",
    "Continue the story: When {person} came to {city}, nobody had heard of {topic}.",
    "Write a letter of complaint to {company} about a {product} that {opinion}.",
    "Describe {topic} without using the word 'important'.",
    "Which {n} books would you recommend on {topic}, and why?",
    "Give a recipe that somebody in {city} could cook in {m} minutes.",
    "Write an HTML page for {company} with a heading and a list of {n} products.",
    "Turn these notes into a paragraph: {topic}; {city}; {person}; {month}; {n} participants; {style} mood.",
    "What would {person}, a {job}, say about {topic}?",
    "Write a function in JavaScript that {code}.",
    "Explain the saying that everybody in {city} loves {topic}, and invent its origin.",
    "Is {topic} more useful than {other_topic}? Give arguments for both sides.",
    "Write a checklist for a {job} who travels to {city}.",
)

CODE = (
    *("returns the largest one", "returns their average", "removes duplicates", "sorts them in descending order"),
    *("counts the even ones", "returns the sum of their squares", "splits them into chunks of three"),
    *("checks whether they are sorted", "returns the two largest", "reverses them in place", "finds the missing one"),
    "prints every third one",
)


@dataclass(frozen=True, slots=True)
class Record:
    """A kind of record to extract: its keys, and text templates that contain one."""

    name: str
    keys: str
    texts: tuple[str, ...]


RECORDS = (
    Record(
        "person",
        "name, age, job, city",
        (
            "{person} is a {age}-year-old {job} who has lived in {city} for {n} years.",
            "Our new {job} is called {person}, is {age} and commutes from {city}.",
            "At {age}, {person} left {city} to become a {job}, and never looked back.",
        ),
    ),
    Record(
        "order",
        "order_number, customer, product, quantity, total, delivery_date",
        (
            "Order {number}: {person} bought {n} pieces of {product} for {price} euros in total, to arrive on {date}.",
            "Dear {person}, thank you for your order {number}: {n} x {product}, {price} EUR, delivery on {date}.",
        ),
    ),
    Record(
        "event",
        "title, speaker, city, date, start_time, seats",
        (
            "On {date} at {hour}:30, {person} speaks on {topic} in {city}. There are {m} seats.",
            "Save the date: '{topic}', an evening with {person}, {date}, {hour}:30, {city}. Limited to {m} guests.",
        ),
    ),
    Record(
        "invoice",
        "invoice_number, company, amount, currency, due_date, paid",
        (
            "Invoice {number} from {company} over {price} dollars is due on {date} and has not been paid yet.",
            "We have received your payment of {price} USD for invoice {number} ({company}), which was due on {date}.",
        ),
    ),
    Record(
        "job_posting",
        "position, company, city, salary, start_date, contact",
        (
            "{company} in {city} is looking for a {job} from {date} on. The salary is {salary} a year; write to {email}.",
            "Wanted: {job}. You start on {date} in our office in {city} and earn {salary}. {company}, {email}.",
        ),
    ),
    Record(
        "review",
        "product, rating, opinion, recommended",
        (
            "I bought this {product} in {month}. It {opinion}. {stars} out of 5 stars.",
            "{stars}/5. The {product} from {company} {opinion}.",
        ),
    ),
    Record(
        "flight",
        "flight_number, passenger, from, to, date, departure_time",
        (
            "{person} flies from {city} to {other_city} on {date} with flight {code_number}, departing at {hour}:45.",
            "Your booking: {code_number}, {city} - {other_city}, {date}, {hour}:45, passenger {person}.",
        ),
    ),
    Record(
        "appointment",
        "patient, doctor, clinic, date, time, reason",
        (
            "{person} sees Dr. {other_person} at {company} on {date} at {hour}:15 because of a {complaint}.",
            "Reminder: {date}, {hour}:15, {company}. Dr. {other_person} expects {person} ({complaint}).",
        ),
    ),
    Record(
        "support_ticket",
        "ticket_id, customer, product, problem, priority, assigned_to",
        (
            "Ticket {number}: {person} reports that the {product} {opinion}. Priority high, assigned to {other_person}.",
            "{other_person} takes over ticket {number}, low priority: {person} says the {product} {opinion}.",
        ),
    ),
    Record(
        "contact",
        "name, company, position, email, phone",
        (
            "{person}, {job}, {company}, {email}, phone {phone}.",
            "You can reach our {job} {person} of {company} by mail ({email}) or by phone: {phone}.",
        ),
    ),
    Record(
        "apartment",
        "city, rooms, area_m2, monthly_rent, available_from, pets_allowed",
        (
            "Bright flat in {city}: {n} rooms, {m} square metres, {price} a month, free from {date}. No pets.",
            "{person} lets a {n}-room apartment ({m} m2) in {city} for {price} per month. Pets are welcome. From {date}.",
        ),
    ),
    Record(
        "shipment",
        "tracking_number, sender, recipient, weight_kg, destination, status",
        (
            "Parcel {number} from {company} to {person} in {city}, {n} kg, has left the depot.",
            "{person} in {city} has received shipment {number} ({n} kg) of {company}.",
        ),
    ),
)

JSON_INSTRUCTIONS = (
    "Extract the {record} from the text as JSON with the keys {keys}.\n\nText: {text}",
    "{text}\n\nReturn a JSON object with these keys: {keys}. Return only JSON.",
    "You extract data. Answer with JSON only. Keys: {keys}.\n\n{text}",
    "Read the text and fill in this {record} as JSON ({keys}). Use null for what is missing.\n\n{text}",
    "Convert to JSON:\n{text}\nFields: {keys}",
    "Extract structured data.\nSchema: {schema}\nInput: {text}\nOutput:",
    "What does this say about the {record}? Reply in JSON following the schema {schema}\n\n{text}",
    "Each line is about one {record}. Return a JSON array of {count} objects with the keys {keys}.\n\n{texts}",
    "JSON please, keys {keys}:\n{text}",
    "List every {record} in the following as a JSON array of objects with the keys {keys}.\n\n{texts}",
)

GENERATED_JSON = (
    "Write a JSON object that describes a {product}, with at least {n} keys.",
    "Give me an example of a JSON file with {n} entries about {topic}.",
    "Make up a {record} and write it as JSON with the keys {keys}.",
    "Create a JSON array of {n} objects of the kind {record} with the keys {keys}.",
    "Write a JSON configuration for a server of {company}, with host, port, logging and {n} users.",
    "Write {n} quiz questions about {topic} as a JSON array, each with question, options and answer.",
)

FOLLOW_UPS = (
    "Make it shorter.",
    "Summarize that in one sentence.",
    "Now say it for {audience}.",
    "Translate that into {language}.",
    "Can you give an example?",
    "Rewrite it in a {style} tone.",
    "Turn it into a list of {n} points.",
    "Are you sure? Check it step by step.",
    "What else should I know?",
    "Write it again, but mention {city}.",
    "Thanks! And what about {topic}?",
    "What is the main idea?",
    "Translate that into English.",
)

ABOUT_TEXT = (
    "Summarize the following text in {n} sentences.\n\n{passage}",
    "{passage}\n\nWhat is the main point of this text?",
    "Rewrite this in a {style} style:\n\n{passage}",
    "Translate into {language}:\n\n{passage}",
    "Answer with the help of the text. Question: what is said here that {audience} should know?\n\nText: {passage}",
    "Find the three most important statements in this text and quote them.\n\n{passage}",
    "Continue this text:\n\n{passage}",
    "Give this text a title and say why it fits.\n\n{passage}",
    "{passage}\n\n{fact}",
    "What is this in English?\n\n{passage}",
)

ABOUT_TEXTS = (
    "Answer the question with the help of the documents below.\n\n{passages}\n\nQuestion: What is said about {topic}?",
    "Summarize the following article:\n\n{passages}",
    "{passages}\n\nWhat do these texts have in common, and where do they differ?",
    "Read the passages and answer in {n} sentences. Which of them matters most to {audience}?\n\n{passages}",
    "Context:\n{passages}\n\nBased on the context, what should {audience} know?",
    "Write a summary of no more than {n} sentences.\n\n{passages}\n\nSummary:",
    "{passages}\n{fact}",
    "Shorten this report to {n} sentences. {passages}",
    "A search has found these passages.\n\n{passages}\n\nUse them to answer: {fact}",
    "{passages}\n\nQuestion: {fact}\nAnswer:",
    "Summary, please: {passages}",
)

JSON_ABOUT_TEXT = (
    "Extract the key facts from the text as JSON with the keys title, summary and facts.\n\n{passage}",
    "{passage}\n\nReturn JSON with the keys topic, people, places and numbers.",
    "Classify this text. Answer as JSON with the keys category, language, tone and confidence.\n\n{passage}",
    "Text:\n{passage}\n\nWrite a JSON array of the sentences, each with the keys text and keywords.",
)

TASKS = (
    "You summarize texts. Answer with a short summary of the user's text.",
    "You translate the user's text into English.",
    "You rewrite the user's text so that it is shorter and clearer.",
    "You solve problems of mathematics step by step.",
    "You answer questions with the help of the passages that the user gives.",
    "You are an assistant who writes code and explains it.",
    "You answer questions about history, geography and people with facts.",
    "You are a teacher of the natural sciences.",
    "You play the role that the user asks for.",
    "You extract facts from the user's text.",
    "You are an editor. Correct the user's text, and say what you changed.",
    "You give advice on everyday problems.",
)
"""System messages, behind which the target itself writes a user's message."""

COMPLAINTS = ("cough", "sore knee", "headache", "routine check", "skin rash", "back pain", "fever", "broken finger")
